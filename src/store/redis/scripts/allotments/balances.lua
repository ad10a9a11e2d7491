-- Reads the balances of an account, and what is lent of it. Changes nothing.
-- KEYS: the account, the ids of its allotments.
-- Reply: credit, available, held, posted and written off; nothing if there is no account. Then for
--   each allotment what it holds, what its gateway needs, and the number of open calls.
local account, allotments = KEYS[1], KEYS[2]
local reply = redis.call('HMGET', account, 'credit', 'available', 'held', 'posted', 'written_off')
if not reply[1] then return {} end
for _, id in ipairs(redis.call('SMEMBERS', allotments)) do
  local hold = tag_of(account) .. 'hold:' .. id
  local known = redis.call('HMGET', hold, 'state', 'held', 'needed', 'open_calls')
  if known[1] == 'open' then
    for at = 2, 4 do table.insert(reply, known[at]) end
  end
end
return reply
