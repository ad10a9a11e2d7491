local record, body, open = KEYS[1], KEYS[2], KEYS[3]
local id, revision, knew, job, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local due, forget = tonumber(ARGV[6]), ARGV[7]
local known = redis.call('HMGET', record, 'deleted', 'saved_from', 'job', 'revision')
local deleted = known[1]
-- The same again, since the answer was lost; a claim in between would have cleared it.
if known[2] == revision and known[3] == job then return told('saved', record, known[4], deleted) end
if not is_claim(record, revision) then return {'gone'} end
redis.call('HSET', record, 'job', job, 'status', status, 'saved_from', revision)
if due then
  -- Whoever did not know of the deletion asked for the time of a video that is wanted.
  if deleted == '1' and knew == '0' then due = 0 end
  redis.call('HSET', record, 'due', text(now_ms() + due), 'until', '0')
end
if forget == '1' then redis.call('DEL', body) end
redis.call(is_open(status) and 'SADD' or 'SREM', open, id)
revision = raise(record, 'revision')
raise(record, 'version')
return told('saved', record, revision, deleted)
