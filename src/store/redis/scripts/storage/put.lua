-- Stores a cache entry under one or more names, or deletes it from them if its life is 0. If the
-- list has too many entries, those that expire first are evicted.
-- KEYS: the prefix of the account's keys, the list, the sum of its bytes, then the key of each
--   name.
-- ARGV: the entry, its life in ms, the most entries of the list, then the names.
-- Reply: 'done' and the bytes that the account keeps.
local tag, list, total = KEYS[1], KEYS[2], KEYS[3]
local entry, life, entries_max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- About how many bytes the server needs for an entry, besides its content and its name.
local ENTRY_OVERHEAD_BYTES = 200
local now = now_ms()
remove_expired(list, total, now)
for at = 4, #KEYS do
  local key, name = KEYS[at], ARGV[at]
  local before = whole(redis.call('STRLEN', key) + #name + ENTRY_OVERHEAD_BYTES)
  if redis.call('ZREM', list, before .. ' ' .. name) == 1 then
    redis.call('DECRBY', total, before)
  end
  if life == 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, entry, 'PX', whole(life))
    add_member(list, total, #entry + #name + ENTRY_OVERHEAD_BYTES, name, now, life)
  end
end
for _ = 1, redis.call('ZCARD', list) - entries_max do
  local bytes, name = split(redis.call('ZPOPMIN', list)[1])
  redis.call('UNLINK', tag .. 'note:' .. name)
  redis.call('DECRBY', total, bytes)
end
return {'done', kept_bytes(tag)}
