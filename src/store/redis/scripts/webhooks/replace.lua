-- Replaces the body and the due time of a row that has still the version that was read.
-- KEYS: the row; when the next rows of all owners are due; when the owner's rows are.
-- ARGV: its id; the version; when it is due, or ''; the body; the owner.
-- Reply: 'replaced', or 'changed' if it has another version or is not there.
local row, due, due_of = KEYS[1], KEYS[2], KEYS[3]
local id, version, due_at, body, owner = unpack(ARGV, 1, 5)
if redis.call('HGET', row, 'version') ~= version then return {'changed'} end
redis.call('HSET', row, 'due_at', due_at, 'body', body)
redis.call('HINCRBY', row, 'version', 1)
note_due(due, due_of, owner, id, due_at)
return {'replaced'}
