-- Renews the lease of a call on its idempotency key.
-- KEYS: the record of the key.
-- ARGV: the id of the call; the lease, and how long the record must live at least, in ms.
-- Reply: 'done', or 'gone' if the call does not have the key any more or has ended.
local record = KEYS[1]
local owner, lease, life = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not is_running(record, owner) then return {'gone'} end
redis.call('HSET', record, 'lease_until', text(now_ms() + lease))
if redis.call('PTTL', record) < life then redis.call('PEXPIRE', record, text(life)) end
return {'done'}
