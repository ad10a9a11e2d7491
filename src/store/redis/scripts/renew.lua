-- Renews a hold's lease, or records a checkpoint of the call's cost, unless the last checkpoint is
-- higher.
-- KEYS: the account, the hold, the account's open holds.
-- ARGV: the id of the hold, then the lease in ms; for a checkpoint the lease is '', and the charge
--   and its journal line follow.
-- Reply: 'done'; 'gone' if the hold is not open; or 'no_account'.
-- It moves no money, so it leaves credit whose time has come to the next script, or to a sweep.
local account, hold, open = KEYS[1], KEYS[2], KEYS[3]
local id, lease, charge, line = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local known = redis.call('HMGET', hold, 'state', 'lease_until', 'posted')
if known[1] ~= 'open' then return {'gone'} end
if lease ~= '' then
  local lease_until = math.max(tonumber(known[2]), now_ms() + tonumber(lease))
  redis.call('HSET', hold, 'lease_until', string.format('%.0f', lease_until))
  redis.call('ZADD', open, string.format('%.0f', lease_until), id)
  return {'done'}
end
if not is_amount(charge) then return redis.error_reply('ERR amount') end
if not known[3] or less(known[3], charge) then
  redis.call('HSET', hold, 'posted', charge, 'line', line)
end
return {'done'}
