-- Updates the entry of a job from the reply of a script on its record, unless the index already has
-- a newer version.
-- ARGV: the job, the version of its record, the time of its next check in unix ms, its status.
-- Reply: 'noted', or 'old' if the index has a newer version.
local member, version, check_at, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('HGET', versions, member)
if known and tonumber(known) > tonumber(version) then return {'old'} end
redis.call('ZADD', due, check_at, member)
redis.call('HSET', versions, member, version)
for name, set in pairs(BY_STATUS) do
  redis.call(name == status and 'SADD' or 'SREM', set, member)
end
return {'noted'}
