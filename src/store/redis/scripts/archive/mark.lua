-- Notes that lines of a day are in the archive. A repeat of the last note changes nothing.
-- KEYS: the account, the journal, the archived days.
-- ARGV: the number of the last line that was archived before; the day, the number of its last line,
--   and its digest.
-- Reply: 'done'; 'refused' if the day does not follow on what is noted, or the journal has no such
--   line; or 'no_account'.
local account, journal, days = KEYS[1], KEYS[2], KEYS[3]
local after, day, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local record = ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]

if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local known = redis.call('ZREVRANGE', days, 0, 1)
local function seq_of(at)
  return known[at] and string.match(known[at], '^%S+ (%d+) ') or '0'
end
if known[1] == record then return {after == seq_of(2) and 'done' or 'refused'} end
if after ~= seq_of(1) or last <= tonumber(after) then return {'refused'} end
if known[1] and day <= tonumber(string.match(known[1], '^%S+')) then return {'refused'} end
if last > journal_length(account, journal) then return {'refused'} end
redis.call('ZADD', days, ARGV[3], record)
return {'done'}
