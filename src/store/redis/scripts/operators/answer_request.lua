-- Keeps the reply to a request for the rest of its time. The first reply stays.
-- KEYS: the record of the request.
-- ARGV: the reply.
-- Reply: 'done'; or 'gone' if the name is not claimed any more.
local record, reply = KEYS[1], ARGV[1]
if redis.call('HEXISTS', record, 'content') == 0 then return {'gone'} end
redis.call('HSETNX', record, 'reply', reply)
return {'done'}
