-- Notes when a key was last used. A key that has no record gets none.
-- KEYS: the record of the key, in one of its two places.
-- ARGV: the time, in unix seconds.
-- Reply: 'done'; 'later' if a later time is known, or the same; or 'unknown'.
local record, at = KEYS[1], ARGV[1]
local fields = redis.call('HMGET', record, 'account', 'last_used_at')
local account, known = fields[1], fields[2]
if not account then return {'unknown'} end
if known and tonumber(known) >= tonumber(at) then return {'later'} end
redis.call('HSET', record, 'last_used_at', at)
return {'done'}
