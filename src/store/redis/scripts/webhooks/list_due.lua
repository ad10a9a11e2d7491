-- Lists what is due, the longest due first: of each owner one row.
-- KEYS: when the next rows of all owners are due; the beginning of the keys of when the rows of an
--   owner are.
-- ARGV: the time; how many at most.
-- Reply: of each row its owner and its id.
local due, dues = KEYS[1], KEYS[2]
local reply = {}
local owners = redis.call('ZRANGE', due, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, owner in ipairs(owners) do
  local id = redis.call('ZRANGE', dues .. owner, 0, 0)[1]
  if id then
    reply[#reply + 1] = owner
    reply[#reply + 1] = id
  end
end
return reply
