-- Places a hold.
-- KEYS: the account, the hold, the account's open holds.
-- ARGV: the id of the hold, the wanted and the least amount, the lease in ms, the id of the call's
--   API key or '', what the call takes of rate limits.
-- Reply: see holding.lua.
return set_aside(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[5], ARGV[2], ARGV[3], tonumber(ARGV[4]),
  ARGV[6])
