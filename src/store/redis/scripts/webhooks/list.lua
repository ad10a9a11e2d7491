-- Lists rows of an owner or of all, newest first.
-- KEYS: the places of the rows; the beginning of their keys.
-- ARGV: the place before which to begin, or ''; how many at most.
-- Reply: of each row its id, owner, times, version and body.
local places, rows, before, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local from = before == '' and '+' or '(' .. before
local reply = {}
local found = redis.call('ZRANGE', places, from, '-', 'BYLEX', 'REV', 'LIMIT', 0, limit)
for _, place in ipairs(found) do
  local id = string.match(place, ':(.*)$')
  local row = redis.call('HMGET', rows .. id, 'owner', 'created_at', 'due_at', 'version', 'body')
  if row[1] then
    reply[#reply + 1] = id
    for part = 1, 5 do reply[#reply + 1] = row[part] end
  end
end
return reply
