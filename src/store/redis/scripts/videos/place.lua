local account, hold, held_open = KEYS[1], KEYS[2], KEYS[3]
local record, body, keys, list, open = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local tag = KEYS[9]
local id, wanted, least, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local deadline, open_max, key = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local status, job, content = ARGV[8], ARGV[9], ARGV[10]
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local known = redis.call('HMGET', record, 'job', 'key')
if known[1] then return told('known', record, known[1], known[2]) end
if key ~= '' then
  local first = redis.call('HGET', keys, key)
  if first then return {'used', first} end
end
local now = now_ms()
if now > deadline then return {'late'} end
if redis.call('SCARD', open) >= open_max then return {'crowded'} end
local held = set_aside(account, hold, held_open, id, wanted, least, lease)
local is_held = held[1] == 'held' or (held[1] == 'hold_exists' and held[3] == 'open')
if not is_held then return held end
redis.call('HSET', record, 'job', job, 'status', status, 'due', text(now), 'until', '0',
  'deleted', '0', 'key', key)
raise(record, 'revision')
raise(record, 'version')
redis.call('SET', body, content)
-- When it is gone is found by whoever counts next.
redis.call('INCRBY', tag .. 'bodies-bytes', whole(#content))
if key ~= '' then redis.call('HSET', keys, key, id) end
redis.call('ZADD', list, '0', id)
if is_open(status) then redis.call('SADD', open, id) end
return told('placed', record, kept_bytes(tag))
