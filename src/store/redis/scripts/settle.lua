-- Ends a hold with a charge, and adds the charge to the journal.
-- KEYS: the account, the hold, the account's open holds, the journal.
-- ARGV: the id of the hold, the charge, the journal line, the tokens that the call has used or '';
--   optionally the origin, with which a lost hold can be settled: the wanted and the least amount,
--   the time of the request in unix ms, and the id of the call's API key or ''; and the charge that
--   a search of the journal has found, '' if it found none.
-- Reply: 'posted', the total charge and the part written off now; 'already_posted' and the amount;
--   'voided' if the hold was voided before; 'unknown' if there is no such hold; 'search_first' if
--   it may be forgotten, and then nothing has changed; 'out_of_range'; or 'no_account'.
-- It comes after lots.lua, windows.lua, rates.lua and forgotten.lua.
local account, hold, open, journal = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, charge, line, tokens = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local wanted, least, at = ARGV[5], ARGV[6], tonumber(ARGV[7])
local key, found = ARGV[8], ARGV[9]
if not is_amount(charge) then return redis.error_reply('ERR amount') end
local marks = redis.call('HMGET', account, 'available', 'journal_marked_at', 'journal_mark',
  'has_budgets')
if not marks[1] then return {'no_account'} end
local known = redis.call('HMGET', hold, 'state', 'held', 'posted', 'windows', 'rates', 'lots')
local state, counted, taken = known[1], known[4], known[5]
local drawn, lots = known[6], find_lots(account)
local is_lost = not state
if is_lost then
  if not wanted then return {'unknown'} end
  if not (is_amount(wanted) and is_amount(least)) then return redis.error_reply('ERR amount') end
  local age = math.abs(now_ms() - at)
  if age >= ENDED_HOLD_TTL_MS then return {'unknown'} end
  if not found and may_be_forgotten(account, id) then return {'search_first'} end
  if found and found ~= '' then return remember_charge(hold, found) end
  -- An older hold may have been voided already, and its record may have expired since.
  if age >= ENDED_HOLD_TTL_MS / 2 then return {'unknown'} end
  -- This server has lost the hold. What the hold set aside is available again, except what other
  -- calls have taken since. So the hold is settled like one that expired.
  state, known = 'expired', {'expired', '0', '0'}
  -- It counts in the windows of the time of its request, of the budgets that there are now.
  if marks[4] then
    counted = table.concat(window_texts_at(tag_of(account), owners_of(key), at), ',')
  end
end
if state == 'posted' then return {'already_posted', known[3]} end
if state == 'voided' or state == 'tombstone' then return {'voided'} end
local amount, total, written_off = charge, charge, '0'
if state ~= 'open' then
  -- The hold has expired, so what is still due is taken from what is available now.
  amount = difference(hold, charge, known[3])
  if string.sub(amount, 1, 1) == '-' then
    amount, total = '0', known[3]
  end
end
local held = state == 'open' and known[2] or '0'
if counted then
  local above = end_in_windows(tag_of(account), counted, held, amount, now_ms())
  line = tell_windows(line, counted)
  line = tell_over_budget(line, above, excess(to_amount(amount), to_amount(held)))
  if is_out_of_range then return {'out_of_range'} end
end
if lots then line = lots.tell(line, lots.end_hold(drawn, held, amount)) end
-- Limits are looked at before money is moved: a script that fails half-way keeps what it has
-- written.
local rates = taken and state == 'open' and open_rates(tag_of(account), now_ms())
if rates then rates.finish(taken, tokens) end
note_hour(account)
local ttl = ENDED_HOLD_TTL_MS
if state == 'open' then
  written_off = post(account, hold, known[2], charge)
  if not written_off then return {'out_of_range'} end
  if is_in_line(id, line) then
    ttl = CHARGED_HOLD_TTL_MS
    mark_journal(account, journal, marks[2], marks[3])
  end
else
  if not add_to_posted(account, amount) then return {'out_of_range'} end
  written_off = charge_available(account, hold, amount)
end
if counted then write_windows(now_ms()) end
if rates then rates.write() end
if lots then lots.write() end
if is_lost then
  redis.call('HSET', hold, 'wanted', wanted, 'least', least, 'held', '0', 'lost', '1')
end
redis.call('HSET', hold, 'state', 'posted', 'posted', total)
redis.call('HDEL', hold, 'line', 'windows', 'rates', 'lots')
redis.call('PEXPIRE', hold, ttl)
redis.call('ZREM', open, id)
append_lines(account, {amount .. ' ' .. written_off .. ' ' .. line})
return {'posted', total, written_off}
