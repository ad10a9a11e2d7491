-- Ends a call. Its body comes along if it is short; else it was written before.
local record, body, replies, total = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local content, owner, life, head = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local bytes, bytes_max, short = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
-- So many that are over are looked for, at most; one call adds one.
local LOOKS_MAX = 100

local known = redis.call('HMGET', record, 'owner', 'ended')
if known[1] and known[1] ~= owner then
  redis.call('UNLINK', body)
  return {'gone'}
end
if known[2] then
  -- What was written again, since the answer to the first end was lost, has a life of its own.
  local is_kept = redis.call('HEXISTS', record, 'head') == 1
  if not is_kept then redis.call('UNLINK', body) end
  if is_kept then redis.call('PEXPIRE', body, text(redis.call('PTTL', record))) end
  return {'done'}
end

local now = now_ms()
local function has_room()
  if redis.call('EXISTS', replies) == 0 then redis.call('DEL', total) end
  local over = redis.call('ZRANGEBYSCORE', replies, '-inf', text(now), 'LIMIT', 0, LOOKS_MAX)
  for _, member in ipairs(over) do
    redis.call('DECRBY', total, string.match(member, '^%d+'))
    redis.call('ZREM', replies, member)
  end
  return tonumber(redis.call('GET', total) or '0') + bytes <= bytes_max
end

local function is_there()
  if short then
    redis.call('SET', body, short, 'PX', text(life))
    return true
  end
  -- What was written may have gone again in between.
  if redis.call('STRLEN', body) ~= bytes then return false end
  return redis.call('PTTL', body) > 0 and redis.call('PEXPIRE', body, text(life)) == 1
end

local kept = head ~= '' and life > 0 and has_room() and is_there()
redis.call('DEL', record)
redis.call('HSET', record, 'owner', owner, 'content', content, 'ended', '1')
if kept then
  redis.call('HSET', record, 'head', head, 'bytes', text(bytes))
  redis.call('ZADD', replies, text(now + life), text(bytes) .. ' ' .. owner)
  redis.call('INCRBY', total, text(bytes))
  for _, key in ipairs({replies, total}) do
    local left = redis.call('PTTL', key)
    if left < life then redis.call('PEXPIRE', key, text(life)) end
  end
  -- The list of what is counted never outlives the count.
  redis.call('PEXPIRE', total, text(redis.call('PTTL', replies) + 1000))
else
  redis.call('UNLINK', body)
end
redis.call('PEXPIRE', record, text(life))
return {'done'}
