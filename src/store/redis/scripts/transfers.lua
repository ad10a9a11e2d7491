-- Payments, grants, refunds and corrections by their ids. The hash of payments has the amount of
-- each payment, as it always had. The hash of transfers has all of them, as JSON whose amounts and
-- times are texts of digits; a payment of an older version is not in it. The last key of a script
-- that writes one is the sorted set of their ids by their times.

-- Returns the record of a transfer; nil if there is none of this id.
local function find_transfer(payments, transfers, tx)
  local paid = redis.call('HGET', payments, tx)
  if paid then return {kind = 'payment', amount = paid, moved = paid} end
  local known = redis.call('HGET', transfers, tx)
  return known and cjson.decode(known) or nil
end

-- Writes the record of a transfer. `more` has what is not there for each: what was moved, the lot,
-- the request, the reason, and of a refund that waits since when and when it was asked for last.
local function write_transfer(transfers, tx, kind, amount, at, more)
  more.kind, more.amount, more.at = kind, amount, string.format('%.0f', at)
  redis.call('HSET', transfers, tx, cjson.encode(more))
  redis.call('ZADD', KEYS[#KEYS], more.at, tx)
end
