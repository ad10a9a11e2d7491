-- Reads the balances of an account, and what is lent of it. Changes nothing. Credit whose time has
-- come is not shown, even if nothing has taken it away yet. It comes after lots.lua.
-- KEYS: the account, the ids of its allotments.
-- Reply: credit, available, held, posted and written off; nothing if there is no account. Then for
--   each allotment what it holds, what its gateway needs, and the number of open calls.
local account, allotments = KEYS[1], KEYS[2]
local reply = redis.call('HMGET', account, 'credit', 'available', 'held', 'posted', 'written_off')
if not reply[1] then return {} end
local lots = redis.call('HGET', account, 'lots')
if lots then
  local available = to_amount(reply[2])
  lots = open_lots(account, lots, available, to_amount(reply[3]))
  local due = lots.expire()
  reply[1] = to_digits(excess(to_amount(reply[1]), due))
  reply[2] = to_digits(excess(available, due))
end
for _, id in ipairs(redis.call('SMEMBERS', allotments)) do
  local hold = tag_of(account) .. 'hold:' .. id
  local known = redis.call('HMGET', hold, 'state', 'held', 'needed', 'open_calls', 'lots')
  if known[1] == 'open' then
    if lots and known[5] then
      -- What is free of credit whose time has come does not come back.
      local held, needed = to_amount(known[2]), to_amount(known[3])
      local free = lots.split_last(lots.parse(known[5], held), excess(held, needed), held)
      known[3] = to_digits(plus(needed, lots.total(lots.split_expired(free, now_ms()))))
    end
    for at = 2, 4 do table.insert(reply, known[at]) end
  end
end
return reply
