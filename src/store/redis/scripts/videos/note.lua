-- What a job's record said last, unless something newer is here already.
local member, version, look, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('HGET', versions, member)
if known and tonumber(known) > tonumber(version) then return {'old'} end
redis.call('ZADD', due, look, member)
redis.call('HSET', versions, member, version)
for name, set in pairs(BY_STATUS) do
  redis.call(name == status and 'SADD' or 'SREM', set, member)
end
return {'noted'}
