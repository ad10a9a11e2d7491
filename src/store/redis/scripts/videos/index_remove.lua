-- Removes the entry of a job that does not exist, unless the time of its check has changed since
-- the caller read it: then another process has added or updated the entry.
-- ARGV: the job, the time of its check as the caller read it.
-- Reply: 'dropped' or 'kept'.
local member, seen = ARGV[1], ARGV[2]
if redis.call('ZSCORE', due, member) ~= seen then return {'kept'} end
redis.call('ZREM', due, member)
redis.call('HDEL', versions, member)
for _, set in pairs(BY_STATUS) do redis.call('SREM', set, member) end
return {'dropped'}
