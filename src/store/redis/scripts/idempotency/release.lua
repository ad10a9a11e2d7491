-- Deletes the record of an idempotency key, if the call has the key and has not ended.
-- KEYS: the record of the key.
-- ARGV: the id of the call.
-- Reply: 'done'.
local record, owner = KEYS[1], ARGV[1]
if is_running(record, owner) then redis.call('DEL', record) end
return {'done'}
