-- Records how many bytes accounts keep: the count given for an account replaces its last one.
-- KEYS: the sorted set of accounts by their bytes, the total of all accounts.
-- ARGV: pairs of an account and its bytes; there may be none.
-- Reply: the total, then pairs of an account and its bytes, for the accounts that keep the most.
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
