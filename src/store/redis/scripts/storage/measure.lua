-- Corrects the count of the bytes that an account keeps: expired members are removed from its
-- lists, and the bodies for vendors are measured anew.
-- KEYS: the prefix of the account's keys.
-- Reply: the bytes that the account keeps.
local tag = KEYS[1]
-- Expired members are removed from a list at most this many times, EXPIRED_BATCH at a time.
local CLEANUP_ROUNDS_MAX = 10
local now = now_ms()
for _, list in ipairs(LISTS) do
  for _ = 1, CLEANUP_ROUNDS_MAX do
    if remove_expired(tag .. list, tag .. list .. '-bytes', now) < EXPIRED_BATCH then break end
  end
end
-- There are few bodies for vendors: only those of open jobs.
local bodies = 0
for _, id in ipairs(redis.call('SMEMBERS', tag .. 'videos-open')) do
  bodies = bodies + redis.call('STRLEN', tag .. 'video-body:' .. id)
end
redis.call('DEL', tag .. 'bodies-bytes')
if bodies > 0 then redis.call('SET', tag .. 'bodies-bytes', whole(bodies)) end
return {kept_bytes(tag)}
