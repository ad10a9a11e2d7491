-- Adds a link or a session of a principal.
-- KEYS: the record; the digests of the principal's links or sessions, the oldest first; the
--   beginning of the keys of their records.
-- ARGV: the digest; the principal; how long the record is kept, in ms; how many there may be.
-- Reply: 'done'.
local record, index, records = KEYS[1], KEYS[2], KEYS[3]
local hash, principal, most = ARGV[1], ARGV[2], tonumber(ARGV[4])
local now = now_ms()
local expires = now + tonumber(ARGV[3])
local expires_text = string.format('%.0f', expires)
-- What has expired, was used or was ended is in the index until now.
local kept = {}
for _, other in ipairs(redis.call('LRANGE', index, 0, -1)) do
  if other ~= hash and redis.call('EXISTS', records .. other) == 1 then
    kept[#kept + 1] = other
  else
    redis.call('LREM', index, 0, other)
  end
end
for place = 1, #kept + 1 - most do
  redis.call('UNLINK', records .. kept[place])
  redis.call('LREM', index, 0, kept[place])
end
-- The record is written last: one that the index does not have would not be ended with the others.
redis.call('RPUSH', index, hash)
if redis.call('PEXPIRETIME', index) < expires then
  redis.call('PEXPIREAT', index, expires_text)
end
local text = table.concat({string.format('%.0f', now), expires_text, principal}, ' ')
redis.call('SET', record, text, 'PXAT', expires_text)
return {'done'}
