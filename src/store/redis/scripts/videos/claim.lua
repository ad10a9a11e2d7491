-- Claims a video job, if it is due and no other claim holds.
-- KEYS: the job's record.
-- ARGV: the lease in ms.
-- Reply: 'claimed', the index values, the revision, '1' if the job's client deleted it or else '0',
--   and the job; 'later' and the index values, if the job is not due; or 'gone' if there is no such
--   job.
local record, lease = KEYS[1], tonumber(ARGV[1])
local known = redis.call('HMGET', record, 'due', 'until', 'job', 'deleted')
if not known[1] then return {'gone'} end
local now = now_ms()
if math.max(tonumber(known[1]), tonumber(known[2])) > now then
  return record_reply('later', record)
end
redis.call('HSET', record, 'until', text(now + lease))
redis.call('HDEL', record, 'saved_from')
local revision = raise(record, 'revision')
raise(record, 'version')
return record_reply('claimed', record, revision, known[4], known[3])
