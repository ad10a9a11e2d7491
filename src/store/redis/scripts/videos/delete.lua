-- Hides a video job from its client, and makes the job due at once.
-- KEYS: the job's record, the account's list of jobs.
-- ARGV: the job's id, the deadline for the change in unix ms.
-- Reply: 'deleted', the index values and the job; 'hidden' and the index values, if the job was
--   hidden before; 'late' after the deadline; or 'gone' if there is no such job.
local record, list = KEYS[1], KEYS[2]
local id, deadline = ARGV[1], tonumber(ARGV[2])
local known = redis.call('HMGET', record, 'deleted', 'job')
if not known[1] then return {'gone'} end
-- The index values are returned in this case too: the process that hid the job may have died before
-- it updated the index.
if known[1] == '1' then return record_reply('hidden', record) end
local now = now_ms()
if now > deadline then return {'late'} end
redis.call('HSET', record, 'deleted', '1', 'due', text(now))
redis.call('ZREM', list, id)
raise(record, 'version')
return record_reply('deleted', record, known[2])
