-- Looks for the charge of a call in a page of the journal, from its end. Changes nothing.
-- KEYS: the account, the journal.
-- ARGV: the id of the hold; how many lines of the journal are left to search, '' for all.
-- Reply: 'found' and the charge; 'more' and how many lines are left; or 'none'.
-- It comes after forgotten.lua.
local account, journal = KEYS[1], KEYS[2]
local LINES_MAX = 1000
local first = search_floor(account)
if not first then return {'none'} end
local last = tonumber(ARGV[2]) or redis.call('LLEN', journal)
local from = math.max(first, last - LINES_MAX)
if last <= first then return {'none'} end
local wanted = line_mark(ARGV[1])
for _, line in ipairs(redis.call('LRANGE', journal, from, last - 1)) do
  if string.find(line, wanted, 1, true) then
    return {'found', string.match(line, '^%d+')}
  end
end
if from == first then return {'none'} end
return {'more', string.format('%.0f', from)}
