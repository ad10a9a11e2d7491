-- Adds a payment to an account, once.
-- KEYS: the account, its payments.
-- ARGV: the id of the payment, the amount.
-- Reply: 'done'; 'exists' if the payment was added before; 'conflict' if it was added with another
--   amount; 'out_of_range'; or 'no_account'.
local account, payments = KEYS[1], KEYS[2]
local tx, amount = ARGV[1], ARGV[2]
if not is_amount(amount) then return redis.error_reply('ERR amount') end
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local known = redis.call('HGET', payments, tx)
if known then
  if known == amount then return {'exists'} end
  return {'conflict'}
end
if amount ~= '0' then
  local fits = redis.pcall('HINCRBY', account, 'credit', amount)
  if type(fits) == 'table' and fits.err then return {'out_of_range'} end
end
add(account, 'available', amount)
redis.call('HSET', payments, tx, amount)
return {'done'}
