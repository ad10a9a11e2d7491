-- Drops so many bytes of what an account keeps, the first to go first: bodies of replies, of which
-- the names stay, before notes, and what a model thought before the ids by which clients go on.
local tag, wanted = KEYS[1], tonumber(ARGV[1])
local STEPS_MAX = 500
local dropped, steps = 0, 0
for _, list in ipairs(LISTS) do
  local kind = list == 'replies' and 'reply:' or 'note:'
  while dropped < wanted and steps < STEPS_MAX do
    local first = redis.call('ZPOPMIN', tag .. list)[1]
    if not first then break end
    local bytes, name = split(first)
    redis.call('UNLINK', tag .. kind .. name)
    redis.call('DECRBY', tag .. list .. '-bytes', bytes)
    dropped = dropped + tonumber(bytes)
    steps = steps + 1
  end
end
return {whole(dropped), kept_bytes(tag)}
