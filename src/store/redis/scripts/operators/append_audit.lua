-- Appends a line to the record of changes, and removes some of the oldest if there are too many.
-- KEYS: the lines, a list; how many lines were removed from its beginning.
-- ARGV: the line; how many lines there may be; how many to remove at most; among how many of the
--   last lines the same one may be, which is not appended again then.
-- Reply: 'done'.
local lines, removed, line = KEYS[1], KEYS[2], ARGV[1]
for _, recent in ipairs(redis.call('LRANGE', lines, '-' .. ARGV[4], '-1')) do
  if recent == line then return {'done'} end
end
local excess = redis.call('RPUSH', lines, line) - tonumber(ARGV[2])
if excess > 0 then
  excess = math.min(excess, tonumber(ARGV[3]))
  redis.call('LTRIM', lines, text(excess), '-1')
  redis.call('INCRBY', removed, text(excess))
end
return {'done'}
