-- Places a video job with its hold, its body and its idempotency key: all of them or nothing.
-- KEYS: the account, the hold, the account's open holds; the job's record and body; the account's
--   idempotency keys of jobs, list of jobs and open jobs; the prefix of the account's keys.
-- ARGV: the job's id, the wanted and the least amount, the lease of the hold in ms, the deadline
--   for placing in unix ms, the most open jobs, the idempotency key or '', the job's status, the
--   job as JSON, the body, the id of the call's API key or '', what the job takes of rate limits.
-- Reply: 'placed', the index values, the bytes that the account keeps, and what each rate limit has
--   left, as in holding.lua; 'known', the index values, the job and its key, if the job exists
--   already; 'charged' if the server had lost the job when its charge came; 'lost' if the
--   idempotency key was that of such a job; 'used' and the id of the job that has the idempotency
--   key; 'late' after the deadline; 'crowded' if there are too many open jobs; 'no_account'; or a
--   reply of holding.lua.
local account, hold, held_open = KEYS[1], KEYS[2], KEYS[3]
local record, body, keys, list, open = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local tag = KEYS[9]
local id, wanted, least, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local deadline, open_max, key = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local status, job, content = ARGV[8], ARGV[9], ARGV[10]
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local known = redis.call('HMGET', record, 'job', 'key')
if known[1] then return record_reply('known', record, known[1], known[2]) end
local now = now_ms()
if key ~= '' then
  local first = redis.call('HGET', keys, key)
  local lost_at = first and string.match(first, '^lost (%d+)$')
  if lost_at then
    if now - tonumber(lost_at) < ENDED_HOLD_TTL_MS then return {'lost'} end
  elseif first then
    return {'used', first}
  end
end
if redis.call('HGET', hold, 'lost') then
  -- The key is kept, so that a repeat is no other job with another charge.
  if key ~= '' and not is_deleted(account) then
    redis.call('HSET', keys, key, 'lost ' .. text(now))
  end
  return {'charged'}
end
if now > deadline then return {'late'} end
if redis.call('SCARD', open) >= open_max then return {'crowded'} end
local held = set_aside(account, hold, held_open, id, ARGV[11], wanted, least, lease, ARGV[12])
local is_held = held[1] == 'held' or (held[1] == 'hold_exists' and held[3] == 'open')
if not is_held then return held end
redis.call('HSET', record, 'job', job, 'status', status, 'due', text(now), 'until', '0',
  'deleted', '0', 'key', key)
raise(record, 'revision')
raise(record, 'version')
redis.call('SET', body, content)
-- The deletion of the body does not reduce this sum. The next measurement of the account does.
redis.call('INCRBY', tag .. 'bodies-bytes', whole(#content))
if key ~= '' then redis.call('HSET', keys, key, id) end
redis.call('ZADD', list, '0', id)
if is_open(status) then redis.call('SADD', open, id) end
local reply = record_reply('placed', record, kept_bytes(tag))
if held[1] == 'held' then
  for at = 3, #held do table.insert(reply, held[at]) end
end
return reply
