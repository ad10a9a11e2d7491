local record, body, keys, list, open = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, revision, look_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not is_claim(record, revision) then return {'gone'} end
local key = redis.call('HGET', record, 'key')
if key ~= '' then redis.call('HDEL', keys, key) end
redis.call('ZREM', list, id)
redis.call('SREM', open, id)
local version = raise(record, 'version')
redis.call('DEL', record, body)
-- For the index, which keeps it for a while, so that no late note brings the job back there.
return {'removed', version, text(now_ms() + look_ms), 'removed'}
