-- Deletes all links and sessions of a principal.
-- KEYS: the digests of its links; the beginning of the keys of their records; the same two of its
--   sessions.
-- Reply: how many sessions there were.
local function delete_all(index, records)
  local deleted = 0
  for _, hash in ipairs(redis.call('LRANGE', index, 0, -1)) do
    deleted = deleted + redis.call('DEL', records .. hash)
  end
  redis.call('DEL', index)
  return deleted
end
delete_all(KEYS[1], KEYS[2])
return {tostring(delete_all(KEYS[3], KEYS[4]))}
