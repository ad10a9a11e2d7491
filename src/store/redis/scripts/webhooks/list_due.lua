-- Lists what is due, the longest due first: of each owner and kind one row.
-- KEYS: when the next rows of all owners are due; of each kind the beginning of the keys of when the
--   rows of an owner are.
-- ARGV: the time; how many at most; the kinds, in the order of the keys.
-- Reply: of each row its kind, owner and id.
local due, dues = KEYS[1], {}
for place = 3, #ARGV do dues[ARGV[place]] = KEYS[place - 1] end
local reply = {}
for _, name in ipairs(redis.call('ZRANGE', due, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  local kind, owner = string.match(name, '^(%a+):(.*)$')
  local id = dues[kind] and redis.call('ZRANGE', dues[kind] .. owner, 0, 0)[1]
  if id then
    for _, part in ipairs({kind, owner, id}) do reply[#reply + 1] = part end
  end
end
return reply
