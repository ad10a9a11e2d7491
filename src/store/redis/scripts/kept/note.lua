-- Keeps a note under names. Where there are more than there may be, those that go first make room.
local tag, list, total = KEYS[1], KEYS[2], KEYS[3]
local note, life, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- What the server needs for one beside its bytes, about.
local BESIDE = 200
local now = now_ms()
drop_over(list, total, now)
for at = 4, #KEYS do
  local key, name = KEYS[at], ARGV[at]
  local before = whole(redis.call('STRLEN', key) + #name + BESIDE)
  if redis.call('ZREM', list, before .. ' ' .. name) == 1 then
    redis.call('DECRBY', total, before)
  end
  if life == 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, note, 'PX', whole(life))
    count(list, total, #note + #name + BESIDE, name, now, life)
  end
end
for _ = 1, redis.call('ZCARD', list) - most do
  local bytes, name = split(redis.call('ZPOPMIN', list)[1])
  redis.call('UNLINK', tag .. 'note:' .. name)
  redis.call('DECRBY', total, bytes)
end
return {'done', kept_bytes(tag)}
