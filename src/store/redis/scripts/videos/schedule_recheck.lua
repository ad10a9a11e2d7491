-- Schedules a check of a job that is about to be made due sooner. A check that is scheduled earlier
-- stays.
-- ARGV: the job; after how many ms it is checked; within how many ms it must be changed.
-- Reply: the deadline for the change, in unix ms, and ''.
local member, recheck_after_ms, deadline_after_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local check_at, known = now + recheck_after_ms, redis.call('ZSCORE', due, member)
if known then check_at = math.min(check_at, tonumber(known)) end
redis.call('ZADD', due, text(check_at), member)
return {text(now + deadline_after_ms), ''}
