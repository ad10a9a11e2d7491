local record, list = KEYS[1], KEYS[2]
local id, deadline = ARGV[1], tonumber(ARGV[2])
local known = redis.call('HMGET', record, 'deleted', 'job')
if not known[1] then return {'gone'} end
-- Told all the same: whoever hid it may have died before the index heard of it.
if known[1] == '1' then return told('hidden', record) end
local now = now_ms()
if now > deadline then return {'late'} end
redis.call('HSET', record, 'deleted', '1', 'due', text(now))
redis.call('ZREM', list, id)
raise(record, 'version')
return told('deleted', record, known[2])
