-- Takes the turn to write to the archive, or prolongs it.
-- KEYS: the turn.
-- ARGV: who asks, and how long the turn is, in ms.
-- Reply: 'done'; or 'taken' if another has it.
local known = redis.call('GET', KEYS[1])
if known and known ~= ARGV[1] then return {'taken'} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {'done'}
