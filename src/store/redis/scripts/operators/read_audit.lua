-- Returns lines of the record of changes.
-- KEYS: the lines, a list; how many lines were removed from its beginning.
-- ARGV: the number before which the lines are, or '' for the newest ones; how many at most.
-- Reply: the number of the first line, then the lines, oldest first.
local lines, removed, limit = KEYS[1], KEYS[2], tonumber(ARGV[2])
local first = tonumber(redis.call('GET', removed) or '0') + 1
local next_number = first + redis.call('LLEN', lines)
local before = math.min(tonumber(ARGV[1]) or next_number, next_number)
local from = math.max(before - limit, first)
if limit < 1 or before <= first then return {text(first)} end
local found = redis.call('LRANGE', lines, text(from - first), text(before - 1 - first))
table.insert(found, 1, text(from))
return found
