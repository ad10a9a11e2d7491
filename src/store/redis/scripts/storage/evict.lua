-- Evicts at least the wanted number of bytes of what an account keeps, as far as one call may, in
-- the order of expiry within each list. Bodies of replies come first (their idempotency keys stay),
-- then the models' saved thinking and other cache entries, and last the vendor ids by which clients
-- continue.
-- KEYS: the prefix of the account's keys.
-- ARGV: the wanted number of bytes.
-- Reply: the bytes that were evicted, and the bytes that the account keeps.
local tag, wanted = KEYS[1], tonumber(ARGV[1])
-- One call evicts at most this many bodies and entries.
local EVICTIONS_MAX = 500
local evicted_bytes, evictions = 0, 0
for _, list in ipairs(LISTS) do
  local kind = list == 'replies' and 'reply:' or 'note:'
  while evicted_bytes < wanted and evictions < EVICTIONS_MAX do
    local first = redis.call('ZPOPMIN', tag .. list)[1]
    if not first then break end
    local bytes, name = split(first)
    redis.call('UNLINK', tag .. kind .. name)
    redis.call('DECRBY', tag .. list .. '-bytes', bytes)
    evicted_bytes = evicted_bytes + tonumber(bytes)
    evictions = evictions + 1
  end
end
return {whole(evicted_bytes), kept_bytes(tag)}
