-- Ends a call. Its body comes along if it is short; else it was written before.
local record, body, replies, total, tag = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local content, owner, life, head = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local bytes, bytes_max, short = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

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
  drop_over(replies, total, now)
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
  -- Of one that has no bytes here nothing could be dropped.
  if bytes > 0 then count(replies, total, bytes, owner, now, life) end
else
  redis.call('UNLINK', body)
end
redis.call('PEXPIRE', record, text(life))
return {'done', kept_bytes(tag)}
