-- Forgets a job that is gone, unless it was announced or noted since somebody looked at it.
local member, seen = ARGV[1], ARGV[2]
if redis.call('ZSCORE', due, member) ~= seen then return {'kept'} end
redis.call('ZREM', due, member)
redis.call('HDEL', versions, member)
for _, set in pairs(BY_STATUS) do redis.call('SREM', set, member) end
return {'dropped'}
