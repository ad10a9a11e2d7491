-- Claims the name of a request.
-- KEYS: the record of the request; the names of the operator's requests by the time of their
--   expiry; the beginning of the keys of their records.
-- ARGV: the digest of the request's content; the name; how long it is known, in ms; how many
--   requests of an operator may be known; how many to remove at most.
-- Reply: 'new' if the name is claimed; 'running'; 'other_content'; or 'answered' and the reply.
local record, names, records = KEYS[1], KEYS[2], KEYS[3]
local content, name, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local batch = tonumber(ARGV[5])
local known = redis.call('HMGET', record, 'content', 'reply')
if known[1] and known[1] ~= content then return {'other_content'} end
if known[2] then return {'answered', known[2]} end
if known[1] then return {'running'} end
local now = now_ms()
local expired = redis.call('ZRANGEBYSCORE', names, '-inf', text(now), 'LIMIT', 0, batch)
for _, old in ipairs(expired) do redis.call('ZREM', names, old) end
local excess = math.min(redis.call('ZCARD', names) + 1 - tonumber(ARGV[4]), batch)
if excess > 0 then
  for _, oldest in ipairs(redis.call('ZRANGE', names, 0, excess - 1)) do
    redis.call('UNLINK', records .. oldest)
    redis.call('ZREM', names, oldest)
  end
end
redis.call('HSET', record, 'content', content)
redis.call('PEXPIRE', record, text(ttl))
redis.call('ZADD', names, text(now + ttl), name)
redis.call('PEXPIRE', names, text(ttl))
return {'new'}
