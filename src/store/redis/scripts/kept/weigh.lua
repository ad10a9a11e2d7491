local tag = KEYS[1]
-- So often some that are over are looked for, at most.
local TURNS_MAX = 10
local now = now_ms()
for _, list in ipairs(LISTS) do
  for _ = 1, TURNS_MAX do
    if drop_over(tag .. list, tag .. list .. '-bytes', now) < LOOKS_MAX then break end
  end
end
-- Bodies for vendors are few: those of jobs that are under way.
local bodies = 0
for _, id in ipairs(redis.call('SMEMBERS', tag .. 'videos-open')) do
  bodies = bodies + redis.call('STRLEN', tag .. 'video-body:' .. id)
end
redis.call('DEL', tag .. 'bodies-bytes')
if bodies > 0 then redis.call('SET', tag .. 'bodies-bytes', whole(bodies)) end
return {kept_bytes(tag)}
