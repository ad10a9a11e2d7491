-- What accounts keep, each by the last word on it; tells how much that is, and who keeps most.
local accounts, total = KEYS[1], KEYS[2]
local HOLDERS = 8
for at = 1, #ARGV, 2 do
  local name, bytes = ARGV[at], tonumber(ARGV[at + 1])
  local known = tonumber(redis.call('ZSCORE', accounts, name) or '0')
  if bytes > 0 then
    redis.call('ZADD', accounts, whole(bytes), name)
  else
    redis.call('ZREM', accounts, name)
  end
  redis.call('INCRBY', total, whole(bytes - known))
end
local most = redis.call('ZREVRANGE', accounts, 0, HOLDERS - 1, 'WITHSCORES')
return {redis.call('GET', total) or '0', unpack(most)}
