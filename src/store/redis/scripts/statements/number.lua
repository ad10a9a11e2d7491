-- Gives a statement that is stored its number, unless it has one. No field is ever deleted, so the
-- numbers have no gaps.
-- KEYS: the numbers of statements by their names.
-- ARGV: the name.
-- Reply: the number.
local numbers, name = KEYS[1], ARGV[1]
local known = redis.call('HGET', numbers, name)
if known then return {known} end
local number = string.format('%.0f', redis.call('HLEN', numbers) + 1)
redis.call('HSET', numbers, name, number)
return {number}
