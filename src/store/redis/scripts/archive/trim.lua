-- Deletes the first lines of a journal, as far as they are archived and in the sums of usage. The
-- last line always stays.
-- KEYS: the account, the journal, the hours of its lines, the archived days, the state of the sums.
-- ARGV: the number of the last line that is to go, and how many lines at most.
-- Reply: 'done' and the number of the last line that is no longer there; or 'no_account'.
local account, journal, hours, days, state = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local to, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

-- All is read before anything is written: while a slot of a cluster moves, a key that is gone ends
-- the script.
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local base = journal_base(account)
local archived = tonumber(redis.call('ZREVRANGE', days, 0, 0, 'WITHSCORES')[2] or '0')
local folded = tonumber(redis.call('HGET', state, 'seq') or '0')
local before_last = journal_length(account, journal) - 1
local last = math.min(to, archived, folded, before_last, base + limit)
if last <= base then return {'done', string.format('%.0f', base)} end
-- The index of the first line that stays. The last mark that is not after it tells its hour.
local index = string.format('%.0f', last)
local mark = redis.call('ZREVRANGEBYSCORE', hours, index, '-inf', 'LIMIT', 0, 1)[1]
local gone = redis.call('ZREVRANGEBYSCORE', hours, '(' .. index, '-inf', 'LIMIT', 0, 1)[1]
redis.call('HSET', account, 'journal_base', index)
-- In which hour the last line was posted that is gone: a search for a late call has to know.
if gone then redis.call('HSET', account, 'journal_base_hour', string.match(gone, '%S+$')) end
redis.call('LTRIM', journal, string.format('%.0f', last - base), -1)
if mark then redis.call('ZREMRANGEBYSCORE', hours, '-inf', '(' .. string.match(mark, '^%d+')) end
return {'done', index}
