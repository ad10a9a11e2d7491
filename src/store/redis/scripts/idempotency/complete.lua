-- Ends a call that has an idempotency key, and stores its reply if there is room. A short body is
-- in the arguments; a longer one was written to its key before.
-- KEYS: the record of the key, the body, the list of the account's reply bodies, the sum of their
--   bytes, the prefix of the account's keys.
-- ARGV: the digest of the call's content; the id of the call; the life of the record in ms; the
--   head of the reply as JSON, or '' to store no reply; the length of the body; the most bytes of
--   replies of an account; the body, if it is short.
-- Reply: 'done' and the bytes that the account keeps (without them if the call had ended before);
--   or 'gone' if another call has the key.
local record, body, replies, total, tag = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local content, owner, life, head = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local bytes, bytes_max, short = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

local known = redis.call('HMGET', record, 'owner', 'ended')
if known[1] and known[1] ~= owner then
  redis.call('UNLINK', body)
  return {'gone'}
end
if known[2] then
  -- The reply to the first attempt to end the call was lost. The body may have been written again,
  -- with the short life of an unfinished body, so it gets the life of its record.
  local is_kept = redis.call('HEXISTS', record, 'head') == 1
  if not is_kept then redis.call('UNLINK', body) end
  if is_kept then redis.call('PEXPIRE', body, text(redis.call('PTTL', record))) end
  return {'done'}
end

local now = now_ms()
local function has_room()
  remove_expired(replies, total, now)
  return tonumber(redis.call('GET', total) or '0') + bytes <= bytes_max
end

local function store_or_extend_body()
  -- A body elsewhere is not stored here.
  if bytes == 0 then return true end
  if short then
    redis.call('SET', body, short, 'PX', text(life))
    return true
  end
  -- The body that was written before may have expired since.
  if redis.call('STRLEN', body) ~= bytes then return false end
  return redis.call('PTTL', body) > 0 and redis.call('PEXPIRE', body, text(life)) == 1
end

local kept = head ~= '' and life > 0 and has_room() and store_or_extend_body()
redis.call('DEL', record)
redis.call('HSET', record, 'owner', owner, 'content', content, 'ended', '1')
if kept then
  redis.call('HSET', record, 'head', head, 'bytes', text(bytes))
  -- Only a reply with a body here is counted: from another one no bytes could be evicted.
  if bytes > 0 then add_member(replies, total, bytes, owner, now, life) end
else
  redis.call('UNLINK', body)
end
redis.call('PEXPIRE', record, text(life))
return {'done', kept_bytes(tag)}
