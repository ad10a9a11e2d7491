-- Adds a payment to an account, once.
-- KEYS: the account, its payments, its transfers, the times of its transfers.
-- ARGV: the id of the payment, the amount.
-- Reply: 'done'; 'exists' if the payment was added before; 'conflict' if the id was used for
--   something else; 'out_of_range'; 'deleted' if the account is; or 'no_account'.
-- It comes after lots.lua and transfers.lua.
local account, payments, transfers = KEYS[1], KEYS[2], KEYS[3]
local tx, amount = ARGV[1], ARGV[2]
if not is_amount(amount) then return redis.error_reply('ERR amount') end
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
find_lots(account)
local known = find_transfer(payments, transfers, tx)
if known then
  if known.kind == 'payment' and known.amount == amount then return {'exists'} end
  return {'conflict'}
end
if is_deleted(account) then return {'deleted'} end
if amount ~= '0' then
  local fits = redis.pcall('HINCRBY', account, 'credit', amount)
  if type(fits) == 'table' and fits.err then return {'out_of_range'} end
end
add(account, 'available', amount)
redis.call('HSET', payments, tx, amount)
write_transfer(transfers, tx, 'payment', amount, now_ms(), {})
return {'done'}
