-- Ends a hold whose lease has expired, and charges the cost of its last checkpoint, if there is
-- one.
-- KEYS: the account, the hold, the account's open holds, the journal.
-- ARGV: the id of the hold.
-- Reply: 'done' and the part written off; 'gone' if the hold is not open, if its lease has not
--   expired, or if the charge does not fit.
-- It comes after windows.lua.
local account, hold, open, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id = ARGV[1]
local known = redis.call('HMGET', hold, 'state', 'held', 'posted', 'line', 'lease_until',
  'windows')
if known[1] ~= 'open' then
  redis.call('ZREM', open, id)
  return {'gone'}
end
local now = now_ms()
if tonumber(known[5]) > now then return {'gone'} end
local charge = known[3] or '0'
if known[6] then end_in_windows(tag_of(account), known[6], known[2], charge, now) end
if is_out_of_range then return {'gone'} end
local written_off = post(account, hold, known[2], charge)
if not written_off then return {'gone'} end
write_windows(now)
redis.call('HSET', hold, 'state', 'expired', 'posted', charge)
redis.call('HDEL', hold, 'line')
redis.call('PEXPIRE', hold, ENDED_HOLD_TTL_MS)
redis.call('ZREM', open, id)
if charge ~= '0' then
  redis.call('RPUSH', journal, charge .. ' ' .. written_off .. ' ' .. (known[4] or ''))
end
return {'done', written_off}
