-- Places a hold: sets aside as much of `wanted` as is available, but not less than `least`. Nothing
-- changes if the hold exists already.
-- Reply: 'held' and the amount; 'hold_exists', its amount and its state; 'insufficient' and what is
--   available; 'conflict' if the hold exists with other amounts; 'tombstoned' if it was voided
--   before; 'wait' if the money is lent, and was called back; or 'no_account'.
-- It comes after recall.lua.
local function set_aside(account, hold, open, id, wanted, least, lease)
  if not (is_amount(wanted) and is_amount(least)) then return redis.error_reply('ERR amount') end
  local available = redis.call('HGET', account, 'available')
  if not available then return {'no_account'} end
  local known = redis.call('HMGET', hold, 'state', 'wanted', 'least', 'held')
  if known[1] then
    if known[1] == 'tombstone' then return {'tombstoned'} end
    if known[2] ~= wanted or known[3] ~= least then return {'conflict'} end
    return {'hold_exists', known[4], known[1]}
  end
  if less(available, least) then
    if recall(account, least) then return {'wait'} end
    return {'insufficient', available}
  end
  local held = wanted
  if less(available, wanted) then held = available end
  local lease_until = now_ms() + lease
  subtract(account, 'available', held)
  add(account, 'held', held)
  redis.call('HSET', hold, 'state', 'open', 'wanted', wanted, 'least', least, 'held', held,
    'lease_until', string.format('%.0f', lease_until))
  redis.call('ZADD', open, string.format('%.0f', lease_until), id)
  return {'held', held}
end
