-- Removes an operator.
-- KEYS: the records of operators by name; the names by the digests of tokens.
-- ARGV: the name.
-- Reply: 'done', 'unknown' or 'last_owner'.
local operators, tokens, name = KEYS[1], KEYS[2], ARGV[1]
local known = redis.call('HGET', operators, name)
if not known then return {'unknown'} end
if is_last_owner(operators, name, known) then return {'last_owner'} end
redis.call('HDEL', operators, name)
redis.call('HDEL', tokens, string.match(known, '^%S*'))
return {'done'}
