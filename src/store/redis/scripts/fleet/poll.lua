-- Says that a gateway serves, and returns the questions that it has not seen.
-- KEYS: the members by the time of their last poll; the last question that each has answered; the
--   questions by their number; the number of the last question; whether a member was lost.
-- ARGV: the member; the last question that it has answered, or '' with its first poll; the lease of
--   a member in ms; how long it is known that a member was lost, in ms; how many questions to
--   return at most; '1' if the member has polled for a whole lease.
-- Reply: the last question that the member has answered; '1' if it was a member before; then number
--   and text of each question.
local members, seen, questions, last, lost = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local member, answered, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local newest = tonumber(redis.call('GET', last) or '0')
-- A new member has nothing that was asked for before it came.
answered = answered or newest
-- A store that lost its last writes may have lost numbers that were answered.
if answered > newest then answered = 0 end
local polled = redis.call('ZSCORE', members, member)
local was_member = polled and '1' or '0'
-- The others went on without it: it was away, or the store lost that it was a member.
if not polled and ARGV[2] ~= '' then redis.call('SET', lost, '1', 'PX', ARGV[4]) end
redis.call('ZADD', members, text(now), member)
redis.call('HSET', seen, member, text(answered))
remove_silent(members, seen, lost, now, lease, tonumber(ARGV[4]), ARGV[6], polled)
local all_answered = newest
for _, number in ipairs(redis.call('HVALS', seen)) do
  all_answered = math.min(all_answered, tonumber(number))
end
redis.call('ZREMRANGEBYSCORE', questions, '-inf', text(all_answered))
local found = redis.call('ZRANGEBYSCORE', questions, '(' .. text(answered), '+inf', 'WITHSCORES',
  'LIMIT', 0, tonumber(ARGV[5]))
local reply = {text(answered), was_member}
for index = 1, #found, 2 do
  reply[#reply + 1] = found[index + 1]
  reply[#reply + 1] = found[index]
end
return reply
