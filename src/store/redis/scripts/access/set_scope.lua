-- Sets the scope of an API key, if it is still the one that was read.
-- KEYS: the record of the key, in the place of keys that have a scope.
-- ARGV: the scope as it was read, and the new one: JSON, or '' for none.
-- Reply: 'done', also if the new scope is stored already; 'changed' if another one is stored; or
-- 'unknown' if the key has no record here.
local record, before, after = KEYS[1], ARGV[1], ARGV[2]
local fields = redis.call('HMGET', record, 'account', 'scope')
local account, stored = fields[1], fields[2] or ''
if not account then return {'unknown'} end
if stored == after then return {'done'} end
if stored ~= before then return {'changed'} end
if after == '' then
  redis.call('HDEL', record, 'scope')
else
  redis.call('HSET', record, 'scope', after)
end
return {'done'}
