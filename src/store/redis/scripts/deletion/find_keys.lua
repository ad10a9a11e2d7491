-- Looks for keys of an account. It runs on the server that has them, also in a cluster.
-- KEYS: the account.
-- ARGV: the cursor, which is '0' at the beginning; about how many keys are looked at.
-- Reply: the next cursor, which is '0' at the end, then keys. A key may be found twice.
local found = redis.call('SCAN', ARGV[1], 'MATCH', tag_of(KEYS[1]) .. '*', 'COUNT', ARGV[2])
return {found[1], unpack(found[2])}
