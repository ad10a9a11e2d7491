-- Schedules a check of a job that is about to be placed. The check takes place whether the job is
-- placed or not.
-- ARGV: the job; after how many ms it is checked; within how many ms it must be placed.
-- Reply: the deadline for placing the job, in unix ms; then the time of the check if the entry is
--   new, or '' if it existed before.
local member, recheck_after_ms, deadline_after_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local check_at, known = now + recheck_after_ms, redis.call('ZSCORE', due, member)
-- An entry that exists always gets another time than before: index_remove.lua compares the times.
-- So neither the process that added the entry first nor a worker that is checking the job now can
-- remove the entry.
if known and tonumber(known) >= check_at then check_at = tonumber(known) + 1 end
if check_at > now + 2 * recheck_after_ms then check_at = now + recheck_after_ms end
redis.call('ZADD', due, text(check_at), member)
return {text(now + deadline_after_ms), known and '' or text(check_at)}
