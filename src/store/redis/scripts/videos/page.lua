-- Reads ids of an account's video jobs, in their order. Changes nothing.
-- KEYS: the account's list of jobs.
-- ARGV: '1' for ascending order, the most ids, and optionally the id after which the page begins.
-- Reply: 'page' and the ids; or 'unknown' if the id after which the page begins is not in the list.
local list, ascending, count, after = KEYS[1], ARGV[1] == '1', ARGV[2], ARGV[3]
if after and not redis.call('ZSCORE', list, after) then return {'unknown'} end
local ids
if ascending then
  local from = after and '(' .. after or '-'
  ids = redis.call('ZRANGEBYLEX', list, from, '+', 'LIMIT', '0', count)
else
  local from = after and '(' .. after or '+'
  ids = redis.call('ZREVRANGEBYLEX', list, from, '-', 'LIMIT', '0', count)
end
table.insert(ids, 1, 'page')
return ids
