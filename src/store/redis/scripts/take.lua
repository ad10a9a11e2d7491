-- Pays credit back, once: credit and what is available fall. Money that is lent is called back
-- first. It is the operation `take_credit` of src/ledger/prepaid/transfer.rs.
-- KEYS: the account, its payments, its transfers, the times of its transfers.
-- ARGV: the id of the refund, the amount, why, and how long lent money is waited for, in ms.
-- Reply: 'taken', the amount that was paid back and what the account did not have; 'wait' if money
--   is lent that may come back; 'conflict' if the id was used for something else; 'deleted' if the
--   account is; or 'no_account'.
-- It comes after lots.lua, recall.lua and transfers.lua.
local account, payments, transfers = KEYS[1], KEYS[2], KEYS[3]
local tx, amount, reason, wait = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if not is_amount(amount) then return redis.error_reply('ERR amount') end
local lots = find_lots(account)
local available = redis.call('HGET', account, 'available')
if not available then return {'no_account'} end

-- Takes what was paid in out of the lots: payments, and then those that are drawn last. Only this
-- is paid back.
local function take_paid(taken, payments_left)
  local rest = excess(taken, payments_left)
  for at = #lots.list, 1, -1 do
    local lot = lots.list[at]
    if lot.rank == 3 then
      local share = smaller(rest, lot.available)
      rest, lot.available = minus(rest, share), minus(lot.available, share)
    end
  end
end

-- Returns what is available of payments, and of all that was paid in.
local function read_paid()
  local payments_left, others = to_amount(available), ZERO
  for _, lot in ipairs(lots.list) do
    payments_left = excess(payments_left, lot.available)
    if lot.rank == 3 then others = plus(others, lot.available) end
  end
  return payments_left, plus(payments_left, others)
end
local known = find_transfer(payments, transfers, tx)
if known and (known.kind ~= 'refund' or known.amount ~= amount) then return {'conflict'} end
if known and known.moved then
  return {'taken', known.moved, difference(account, amount, known.moved)}
end
-- What an older version has paid into a deleted account can be paid back.
if not known and available == '0' and is_deleted(account) then return {'deleted'} end
local now = now_ms()
local at = known and tonumber(known.at) or now
-- While the caller asks, nothing is lent. A refund that was left alone begins to wait anew: what is
-- lent now was not called back yet.
local asked_at = known and tonumber(known.asked_at)
local is_waiting = asked_at and now >= asked_at and now - asked_at < RECALL_MS
local since = is_waiting and tonumber(known.since) or now
local refundable, payments_left = available, nil
if lots then
  local paid
  payments_left, paid = read_paid()
  refundable = to_digits(paid)
end
local is_short = less(refundable, amount)
if is_short and now < since + wait and recall(account, '0', ZERO) then
  write_transfer(transfers, tx, 'refund', amount, at, {reason = reason,
    since = string.format('%.0f', since), asked_at = string.format('%.0f', now)})
  return {'wait'}
end
local taken = is_short and refundable or amount
if lots then
  take_paid(to_amount(taken), payments_left)
  lots.write()
end
subtract(account, 'available', taken)
subtract(account, 'credit', taken)
-- What gateways remember of the account is no longer true.
redis.call('HINCRBY', account, 'revision', 1)
write_transfer(transfers, tx, 'refund', amount, at, {reason = reason, moved = taken})
return {'taken', taken, difference(account, amount, taken)}
