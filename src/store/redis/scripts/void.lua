-- Ends a hold without a charge. The void of an unknown hold leaves a tombstone, so that a hold that
-- arrives later is refused. If the hold was made out of an allotment, its end is not charged any
-- more.
-- KEYS: the account, the hold, the account's open holds.
-- ARGV: the id of the hold; and the charge that a search of the journal has found, '' if it found
--   none.
-- Reply: 'voided'; 'already_posted' and the amount, if the hold was charged before; 'search_first'
--   if it may be forgotten, and then nothing has changed; or 'no_account'.
-- It comes after lots.lua, windows.lua, rates.lua and forgotten.lua.
local account, hold, open = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local known = redis.call('HMGET', hold, 'state', 'held', 'posted', 'windows', 'rates', 'lots')
local state, lots = known[1], find_lots(account)
if not state then
  local found = ARGV[2]
  if not found and may_be_forgotten(account, id) then return {'search_first'} end
  if found and found ~= '' then return remember_charge(hold, found) end
  redis.call('HSET', hold, 'state', 'tombstone')
  redis.call('PEXPIRE', hold, ENDED_HOLD_TTL_MS)
  return {'voided'}
end
if state == 'posted' then return {'already_posted', known[3]} end
if state == 'expired' and known[3] ~= '0' then return {'already_posted', known[3]} end
-- A hold that expired without a charge counts as voided in time. It must not be charged later
-- either, because a caller that gets this reply may repeat the call.
if state == 'expired' then redis.call('HSET', hold, 'state', 'voided') end
if state == 'open' then
  -- Limits and lots are looked at before money is moved: a script that fails half-way keeps what it
  -- has written.
  local rates = known[5] and open_rates(tag_of(account), now_ms())
  if rates then rates.void(known[5]) end
  local parts = lots and lots.parse(known[6], to_amount(known[2]))
  subtract(account, 'held', known[2])
  add(account, 'available', known[2])
  redis.call('HSET', hold, 'state', 'voided')
  redis.call('PEXPIRE', hold, ENDED_HOLD_TTL_MS)
  redis.call('ZREM', open, id)
  if known[4] then
    local now = now_ms()
    end_in_windows(tag_of(account), known[4], known[2], '0', now)
    write_windows(now)
    redis.call('HDEL', hold, 'windows')
  end
  if rates then
    rates.write()
    redis.call('HDEL', hold, 'rates')
  end
  if lots then
    lots.give_back(parts)
    lots.write()
    redis.call('HDEL', hold, 'lots')
  end
end
return {'voided'}
