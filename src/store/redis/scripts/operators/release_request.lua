-- Gives the name of a request back, unless the request was answered.
-- KEYS: the record of the request; the names of the operator's requests.
-- ARGV: the name.
-- Reply: 'done', or 'answered'.
local record, names, name = KEYS[1], KEYS[2], ARGV[1]
if redis.call('HEXISTS', record, 'reply') == 1 then return {'answered'} end
redis.call('DEL', record)
redis.call('ZREM', names, name)
return {'done'}
