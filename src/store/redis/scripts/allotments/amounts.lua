-- Exact arithmetic on amounts, in nano-USD. An amount is a pair of whole numbers below 2^53: the
-- billions, and the rest. Pairs are never changed.
local BILLION = 1000000000
local ZERO = {0, 0}
local MAX_AMOUNT = {9223372036, 854775807}
-- Whether a sum was above MAX_AMOUNT. A script that sees it writes nothing.
local is_out_of_range = false

local function to_amount(digits)
  if not is_amount(digits) then error({err = 'ERR amount'}) end
  if #digits <= 9 then return {0, tonumber(digits)} end
  return {tonumber(string.sub(digits, 1, -10)), tonumber(string.sub(digits, -9))}
end

local function to_digits(amount)
  if amount[1] == 0 then return string.format('%.0f', amount[2]) end
  return string.format('%.0f%09.0f', amount[1], amount[2])
end

local function is_below(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end

local function smaller(a, b)
  if is_below(b, a) then return b end
  return a
end

local function larger(a, b)
  if is_below(a, b) then return b end
  return a
end

local function plus(a, b)
  local sum = {a[1] + b[1], a[2] + b[2]}
  if sum[2] >= BILLION then sum = {sum[1] + 1, sum[2] - BILLION} end
  if is_below(MAX_AMOUNT, sum) then is_out_of_range = true end
  return sum
end

-- Returns a - b; zero if b is larger.
local function excess(a, b)
  if not is_below(b, a) then return ZERO end
  if a[2] < b[2] then return {a[1] - b[1] - 1, a[2] - b[2] + BILLION} end
  return {a[1] - b[1], a[2] - b[2]}
end

-- Returns a - b. The books are wrong if b is larger; then nothing may be written.
local function minus(a, b)
  if is_below(a, b) then error({err = 'ERR an amount would be below zero'}) end
  return excess(a, b)
end

-- Returns the whole part of an amount divided by a whole number of at most six digits.
local function divide(amount, by)
  local billions = math.floor(amount[1] / by)
  local rest = (amount[1] - billions * by) * BILLION + amount[2]
  return {billions, math.floor(rest / by)}
end
