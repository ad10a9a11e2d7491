-- Writes sums of usage, and moves the number of the last line that is in them. Sums of hours that
-- are too old are deleted.
-- KEYS: the state of the sums, the account, the journal; then for each period the index of its kind
--   and the rows.
-- ARGV: the number of the last line before and now, and how long sums of hours are kept, in ms;
--   then for each period: when it began, the number of rows, and each row's name and sums.
-- Reply: 'done'; or 'changed' if the lines were folded by others, or are not there, and then
--   nothing has changed. It is the same if lines between have left the journal.
local state, account, journal = KEYS[1], KEYS[2], KEYS[3]
local before, last, kept_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- A call deletes at most this many hours of each kind.
local DELETED_MAX = 48

if (redis.call('HGET', state, 'seq') or '0') ~= before then return {'changed'} end
if journal_length(account, journal) < tonumber(last) then return {'changed'} end
if last ~= before and tonumber(before) < journal_base(account) then return {'changed'} end
-- A clock that is ahead for a moment must not make hours old that are not. So they are compared
-- with the newest one, too, unless that is very old itself: then nothing has happened for long.
local now = now_ms()
local kept_from = now - kept_ms
local newest = tonumber(redis.call('ZRANGE', state .. ':hour', -1, -1)[1] or '0')
if newest > now - 4 * kept_ms then kept_from = math.min(kept_from, newest - kept_ms) end
local at, key = 4, 4
while ARGV[at] do
  local start, rows = ARGV[at], tonumber(ARGV[at + 1])
  redis.call('ZADD', KEYS[key], start, start)
  for row = 1, rows do
    local name = at + 2 * row
    redis.call('HSET', KEYS[key + 1], ARGV[name], ARGV[name + 1])
  end
  at, key = at + 2 + 2 * rows, key + 2
end
if last ~= before then redis.call('HSET', state, 'seq', last) end
for _, kind in ipairs({'hour', 'hour-keys'}) do
  local index = state .. ':' .. kind
  local below = string.format('(%.0f', kept_from)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', below, 'LIMIT', 0, DELETED_MAX)
  for _, start in ipairs(old) do
    redis.call('UNLINK', index .. ':' .. start)
    redis.call('ZREM', index, start)
  end
end
return {'done'}
