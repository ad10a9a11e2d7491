-- Removes a row.
-- KEYS: the row; the beginnings of the keys of the places of an owner's rows, and of when they are
--   due; the places of all rows of its kind; when the next rows of all owners are due.
-- ARGV: its id.
-- Reply: 'removed', or 'none'.
local row, owners, dues, of_all, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id = ARGV[1]
local found = redis.call('HMGET', row, 'owner', 'created_at')
local owner = found[1]
if not owner then return {'none'} end
local place = string.format('%015.0f', tonumber(found[2])) .. ':' .. id
redis.call('DEL', row)
redis.call('ZREM', owners .. owner, place)
redis.call('ZREM', of_all, place)
note_due(due, dues .. owner, owner, id, '')
return {'removed'}
