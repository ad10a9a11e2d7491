-- Amounts are strings of digits from first to last: a script's numbers are doubles and would lose
-- nano-USD above 2^53. Redis itself adds and subtracts them, exactly, in 64 bits.
local function sound(amount)
  return type(amount) == 'string' and #amount <= 19 and string.find(amount, '^%d+$') ~= nil
end

local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function add(key, field, amount)
  if amount ~= '0' then redis.call('HINCRBY', key, field, amount) end
end

local function subtract(key, field, amount)
  if amount ~= '0' then redis.call('HINCRBY', key, field, '-' .. amount) end
end

-- a - b as a string, '-' in front if below zero
local function difference(scratch, a, b)
  redis.call('HSET', scratch, 'scratch', a)
  subtract(scratch, 'scratch', b)
  local result = redis.call('HGET', scratch, 'scratch')
  redis.call('HDEL', scratch, 'scratch')
  return result
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A hold that ended is remembered for a day, so that a repeat gets the same answer.
local REMEMBER_MS = 86400000

-- Takes a sum from what is available, the rest as a loss; gives the loss.
local function take(account, scratch, amount)
  local available = redis.call('HGET', account, 'available')
  local paid = amount
  if less(available, amount) then paid = available end
  local lost = difference(scratch, amount, paid)
  subtract(account, 'available', paid)
  add(account, 'written_off', lost)
  return lost
end

-- Adds to what is posted, and does so before anything else changes: a script that fails half-way
-- keeps what it wrote. No other sum can leave the range: a loss is never above what is posted.
local function fits(account, charge)
  if charge == '0' then return true end
  return type(redis.pcall('HINCRBY', account, 'posted', charge)) == 'number'
end

-- Charges an open hold: what it does not cover comes from the account, the rest is a loss.
-- Gives the loss; nil if the charge does not fit and nothing was done.
local function post(account, hold, held, charge)
  if not fits(account, charge) then return nil end
  subtract(account, 'held', held)
  if less(held, charge) then return take(account, hold, difference(hold, charge, held)) end
  -- What was held was available before, so for a moment it can be again.
  add(account, 'available', held)
  subtract(account, 'available', charge)
  return '0'
end
