-- Asks the other gateways a question, or looks whether all have answered it.
-- KEYS: as for a poll; whether a member has forgotten attempts of the account.
-- ARGV: the member that asks; the number of its question, or '' for a new one; the text of the
--   question; the lease of a member in ms; how long it is known that a member was lost, in ms; the
--   most questions at a time; '1' if the member has polled for a whole lease.
-- Reply: 'busy'; or the number of the question, 'waiting' or 'answered', and whether a member was
--   lost, and whether one has forgotten attempts of the account: '1' or '0'.
local members, seen, questions, last, lost = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local member, number, question, lease = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local now = now_ms()
local polled = redis.call('ZSCORE', members, member)
remove_silent(members, seen, lost, now, lease, tonumber(ARGV[5]), ARGV[7], polled)
local others = redis.call('ZCARD', members)
if redis.call('ZSCORE', members, member) then others = others - 1 end
if not number and others > 0 then
  if redis.call('ZCARD', questions) >= tonumber(ARGV[6]) then return {'busy'} end
  number = ask(questions, last, question, now)
end
number = number or 0
local state = 'answered'
if others > 0 then
  for _, other in ipairs(redis.call('ZRANGE', members, 0, -1)) do
    if other ~= member and tonumber(redis.call('HGET', seen, other) or '0') < number then
      state = 'waiting'
    end
  end
end
-- A store that lost its last writes may have lost the question.
if state == 'waiting' and redis.call('ZCOUNT', questions, text(number), text(number)) == 0 then
  number = ask(questions, last, question, now)
end
local function flag(key) return text(redis.call('EXISTS', key)) end
return {text(number), state, flag(lost), flag(KEYS[6])}
