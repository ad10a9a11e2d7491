-- Adds a row, unless there is one with its id.
-- KEYS: the row; the places of its owner's rows; the places of all rows of its kind; when the next
--   rows of all owners are due; when the owner's rows are; the beginning of the keys of the rows of
--   its kind.
-- ARGV: its id; the owner; when it was made; when it is due, or ''; the body; its place; how many
--   the owner may have; how many there may be; '1' if the owner's oldest row makes room.
-- Reply: 'exists', 'full', 'added', or 'in_place_of' with the body of the row that was removed.
local row, of_owner, of_all, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due_of, rows = KEYS[5], KEYS[6]
local id, owner, created_at, due_at, body, place = unpack(ARGV, 1, 6)
local owner_max, all_max, makes_room = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
if redis.call('EXISTS', row) == 1 then return {'exists'} end
local removed = nil
if redis.call('ZCARD', of_owner) >= owner_max or redis.call('ZCARD', of_all) >= all_max then
  local oldest = redis.call('ZRANGE', of_owner, 0, 0)[1]
  if makes_room ~= '1' or not oldest then return {'full'} end
  local oldest_id = string.match(oldest, ':(.*)$')
  removed = redis.call('HGET', rows .. oldest_id, 'body') or ''
  redis.call('DEL', rows .. oldest_id)
  redis.call('ZREM', of_owner, oldest)
  redis.call('ZREM', of_all, oldest)
  note_due(due, due_of, owner, oldest_id, '')
end
redis.call('HSET', row, 'owner', owner, 'created_at', created_at, 'due_at', due_at,
  'version', '1', 'body', body)
-- All have one score: the order is that of the places.
redis.call('ZADD', of_owner, 0, place)
redis.call('ZADD', of_all, 0, place)
note_due(due, due_of, owner, id, due_at)
if removed then return {'in_place_of', removed} end
return {'added'}
