-- Adds credit to a lot, once. It is the operation `add_grant` of src/ledger/prepaid/transfer.rs.
-- KEYS: the account, its payments, its transfers, the journal, the times of its transfers.
-- ARGV: the id of the grant, the amount, the lot.
-- Reply: 'done'; 'exists' if the grant was added before; 'conflict' if the id was used for
--   something else; 'too_many_lots'; 'out_of_range'; 'deleted' if the account is; or 'no_account'.
-- It comes after lots.lua and transfers.lua.
local account, payments, transfers = KEYS[1], KEYS[2], KEYS[3]
local tx, amount, lot = ARGV[1], ARGV[2], ARGV[3]
if not is_amount(amount) then return redis.error_reply('ERR amount') end
local lots = find_lots(account, true)
if not lots then return {'no_account'} end
local known = find_transfer(payments, transfers, tx)
if known then
  local is_same = known.kind == 'grant' and known.amount == amount and known.lot == lot
  return {is_same and 'exists' or 'conflict'}
end
if is_deleted(account) then return {'deleted'} end
if not lots.have_places({new_lot(lot)}) then return {'too_many_lots'} end
lots.put(lot, to_amount(amount))
if is_out_of_range then return {'out_of_range'} end
if amount ~= '0' then
  local fits = redis.pcall('HINCRBY', account, 'credit', amount)
  if type(fits) == 'table' and fits.err then return {'out_of_range'} end
end
add(account, 'available', amount)
-- Credit whose expiry has passed expires at once.
lots.expire()
lots.write()
write_transfer(transfers, tx, 'grant', amount, now_ms(), {lot = lot})
return {'done'}
