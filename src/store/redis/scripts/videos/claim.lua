local record, lease = KEYS[1], tonumber(ARGV[1])
local known = redis.call('HMGET', record, 'due', 'until', 'job', 'deleted')
if not known[1] then return {'gone'} end
local now = now_ms()
if math.max(tonumber(known[1]), tonumber(known[2])) > now then return told('later', record) end
redis.call('HSET', record, 'until', text(now + lease))
redis.call('HDEL', record, 'saved_from')
local revision = raise(record, 'revision')
raise(record, 'version')
return told('claimed', record, revision, known[4], known[3])
