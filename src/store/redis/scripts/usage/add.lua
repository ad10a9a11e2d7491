-- Writes sums of usage, and moves the number of the last line that is in them. Sums of hours that
-- are too old are deleted.
-- KEYS: the state of the sums, the journal.
-- ARGV: the number of the last line before and now, and how long sums of hours are kept, in ms;
--   then for each period: the kind of its rows, when it began, the number of rows, and each row's
--   name and sums.
-- Reply: 'done'; or 'changed' if the lines were folded by others, or are not there, and then
--   nothing has changed.
local state, journal = KEYS[1], KEYS[2]
local before, last, kept_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- A call deletes at most this many hours of each kind.
local DELETED_MAX = 48

if (redis.call('HGET', state, 'seq') or '0') ~= before then return {'changed'} end
if redis.call('LLEN', journal) < tonumber(last) then return {'changed'} end
local at = 4
while ARGV[at] do
  local kind, start, rows = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local index = state .. ':' .. kind
  redis.call('ZADD', index, start, start)
  for row = 1, rows do
    local name = at + 1 + 2 * row
    redis.call('HSET', index .. ':' .. start, ARGV[name], ARGV[name + 1])
  end
  at = at + 3 + 2 * rows
end
if last ~= before then redis.call('HSET', state, 'seq', last) end
local kept_from = string.format('(%.0f', now_ms() - kept_ms)
for _, kind in ipairs({'hour', 'hour-keys'}) do
  local index = state .. ':' .. kind
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', kept_from, 'LIMIT', 0, DELETED_MAX)
  for _, start in ipairs(old) do
    redis.call('UNLINK', index .. ':' .. start)
    redis.call('ZREM', index, start)
  end
end
return {'done'}
