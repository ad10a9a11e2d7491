-- Sets the total of the index to the sum of its accounts.
-- KEYS: the sorted set of accounts by their bytes, the total of all accounts.
-- Reply: the total.
local accounts, total = KEYS[1], KEYS[2]
local sum = 0
for at, value in ipairs(redis.call('ZRANGE', accounts, 0, -1, 'WITHSCORES')) do
  if at % 2 == 0 then sum = sum + tonumber(value) end
end
redis.call('SET', total, whole(sum))
return {whole(sum)}
