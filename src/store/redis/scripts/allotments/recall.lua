-- Calls back what gateways have free of an account. It comes after amounts.lua.

-- After a call had to wait, nothing is lent for this time, in ms.
local RECALL_MS = 1000

-- Returns how many allotments may have something free, and corrects the count that the account has:
-- an older version of the program ends an allotment whose lease has run out like any other hold.
local function recount_lent(account)
  local tag, count = tag_of(account), 0
  local all = tag .. 'allotments'
  for _, id in ipairs(redis.call('SMEMBERS', all)) do
    local known = redis.call('HMGET', tag .. 'hold:' .. id, 'state', 'may_be_free')
    if known[1] ~= 'open' then
      redis.call('SREM', all, id)
      -- Its next update must not take it out of the count once more.
      if known[1] then redis.call('HSET', tag .. 'hold:' .. id, 'may_be_free', '0') end
    elseif known[2] == '1' then
      count = count + 1
    end
  end
  redis.call('HSET', account, 'lent_out', count)
  return count
end

-- Calls back what is lent, so that a hold of `least` may succeed later. False if that cannot help:
-- nothing is lent, or all of the account's money would not do. What is `lost` is held, and does not
-- come back.
local function recall(account, least, lost)
  local known = redis.call('HMGET', account, 'lent_out', 'available', 'held', 'recall_until')
  if not known[1] or known[1] == '0' then return false end
  local all = plus(to_amount(known[2]), to_amount(known[3]))
  if is_below(excess(all, lost), to_amount(least)) then return false end
  if recount_lent(account) == 0 then return false end
  -- Many may wait at the same time.
  local now = now_ms()
  if tonumber(known[4] or '0') - now < RECALL_MS / 2 then
    redis.call('HSET', account, 'recall_until', string.format('%.0f', now + RECALL_MS))
  end
  return true
end
