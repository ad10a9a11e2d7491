-- Ends a hold whose lease has expired, and charges the cost of its last checkpoint, if there is
-- one.
-- KEYS: the account, the hold, the account's open holds, the journal.
-- ARGV: the id of the hold.
-- Reply: 'done' and the part written off; 'gone' if the hold is not open, if its lease has not
--   expired, or if the charge does not fit.
-- It comes after lots.lua, windows.lua and rates.lua.
local account, hold, open = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]
local known = redis.call('HMGET', hold, 'state', 'held', 'posted', 'line', 'lease_until',
  'windows', 'rates', 'lots')
if known[1] ~= 'open' then
  redis.call('ZREM', open, id)
  return {'gone'}
end
local now = now_ms()
if tonumber(known[5]) > now then return {'gone'} end
local lots = find_lots(account)
local charge = known[3] or '0'
local line = known[4] or ''
if known[6] then
  local above = end_in_windows(tag_of(account), known[6], known[2], charge, now)
  line = tell_windows(line, known[6])
  line = tell_over_budget(line, above, excess(to_amount(charge), to_amount(known[2])))
end
if is_out_of_range then return {'gone'} end
if lots then line = lots.tell(line, lots.end_hold(known[8], known[2], charge)) end
-- Limits are looked at before money is moved: a script that fails half-way keeps what it has
-- written.
local rates = known[7] and open_rates(tag_of(account), now)
if rates then rates.finish(known[7], '') end
if charge ~= '0' then note_hour(account) end
local written_off = post(account, hold, known[2], charge)
if not written_off then return {'gone'} end
write_windows(now)
if rates then rates.write() end
if lots then lots.write() end
redis.call('HSET', hold, 'state', 'expired', 'posted', charge)
redis.call('HDEL', hold, 'line', 'rates', 'lots')
redis.call('PEXPIRE', hold, ENDED_HOLD_TTL_MS)
redis.call('ZREM', open, id)
if charge ~= '0' then
  append_lines(account, {charge .. ' ' .. written_off .. ' ' .. line})
end
return {'done', written_off}
