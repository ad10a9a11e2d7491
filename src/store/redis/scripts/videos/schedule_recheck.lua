-- Schedules a check of a job that is about to be made due sooner. A check that is scheduled earlier
-- stays.
-- ARGV: the job; after how many ms it is checked; within how many ms it must be changed.
-- Reply: the deadline for the change, in unix ms, and ''.
local member, look_ms, late_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local look, known = now + look_ms, redis.call('ZSCORE', due, member)
if known then look = math.min(look, tonumber(known)) end
redis.call('ZADD', due, text(look), member)
return {text(now + late_ms), ''}
