-- Looks for the charge of a call in a page of the journal, from its end. Changes nothing.
-- KEYS: the account, the journal.
-- ARGV: the id of the hold; how many lines of the journal are left to search, '' for all.
-- Reply: 'found' and the charge; 'more' and how many lines are left; 'none'; or 'gone' if it is not
--   among the lines that are there, and may have been among those that have left the journal.
-- It comes after forgotten.lua.
local account, journal = KEYS[1], KEYS[2]
local LINES_MAX = 1000
local first = search_floor(account)
if not first then return {'none'} end
local base = journal_base(account)
local is_whole = first >= base or not lacks_late_lines(account)
local nothing = {is_whole and 'none' or 'gone'}
first = math.max(first, base)
local last = tonumber(ARGV[2]) or journal_length(account, journal)
local from = math.max(first, last - LINES_MAX)
if last <= first then return nothing end
local wanted = line_mark(ARGV[1])
for _, line in ipairs(redis.call('LRANGE', journal, from - base, last - 1 - base)) do
  if string.find(line, wanted, 1, true) then
    return {'found', string.match(line, '^%d+')}
  end
end
if from == first then return nothing end
return {'more', string.format('%.0f', from)}
