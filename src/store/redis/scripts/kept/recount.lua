local accounts, total = KEYS[1], KEYS[2]
local sum = 0
for at, word in ipairs(redis.call('ZRANGE', accounts, 0, -1, 'WITHSCORES')) do
  if at % 2 == 0 then sum = sum + tonumber(word) end
end
redis.call('SET', total, whole(sum))
return {whole(sum)}
