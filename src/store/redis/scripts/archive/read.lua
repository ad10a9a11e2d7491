-- Reads lines of a journal after a number, and with them the marks of their hours, if the key of
-- these is given. Changes nothing.
-- KEYS: the account, the journal; optionally the hours of its lines.
-- ARGV: the number, and how many lines at most.
-- Reply: the number of the line before the first one that was read: it is larger than the one that
--   was asked for if lines after that are no longer there; the lines; and the marks.
local account, journal, hours = KEYS[1], KEYS[2], KEYS[3]
local base = journal_base(account)
local after, limit = math.max(tonumber(ARGV[1]), base), tonumber(ARGV[2])
if after >= journal_length(account, journal) then return {'0', {}, {}} end
local function text(number) return string.format('%.0f', number) end
local last = after + limit - 1
local lines = redis.call('LRANGE', journal, text(after - base), text(last - base))
local marks = {}
if hours then
  -- The mark of the first line is the last one that is not after it.
  marks = redis.call('ZREVRANGEBYSCORE', hours, text(after), '-inf', 'LIMIT', 0, 1)
  for _, mark in ipairs(redis.call('ZRANGEBYSCORE', hours, '(' .. text(after), text(last))) do
    table.insert(marks, mark)
  end
end
return {text(after), lines, marks}
