-- Saves a claimed video job, and ends the claim if the job gets a new due time.
-- KEYS: the job's record and body, the account's open jobs.
-- ARGV: the job's id, the revision of the claim, '1' if the worker knew that the job's client
--   deleted it or else '0', the job as JSON, its status, the time until it is due again in ms or ''
--   to keep the claim, '1' to delete the body.
-- Reply: 'saved', the index values, the new revision, and '1' if the job's client deleted it or
--   else '0'; or 'gone' if the claim was lost.
local record, body, open = KEYS[1], KEYS[2], KEYS[3]
local id, revision, knew_deleted, job, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local due, delete_body = tonumber(ARGV[6]), ARGV[7]
local known = redis.call('HMGET', record, 'deleted', 'saved_from', 'job', 'revision')
local deleted = known[1]
-- The same save was done before, and its reply was lost. A claim in between would have cleared the
-- field.
if known[2] == revision and known[3] == job then
  return record_reply('saved', record, known[4], deleted)
end
if not is_claim(record, revision) then return {'gone'} end
redis.call('HSET', record, 'job', job, 'status', status, 'saved_from', revision)
if due then
  -- A worker that did not know of the deletion computed this time for a video that the client still
  -- wants. A deleted job is due at once.
  if deleted == '1' and knew_deleted == '0' then due = 0 end
  redis.call('HSET', record, 'due', text(now_ms() + due), 'until', '0')
end
if delete_body == '1' then redis.call('DEL', body) end
redis.call(is_open(status) and 'SADD' or 'SREM', open, id)
revision = raise(record, 'revision')
raise(record, 'version')
return record_reply('saved', record, revision, deleted)
