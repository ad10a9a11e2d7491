-- What allotments have of rate limits, as src/ledger/prepaid/rate_slices.rs says. It comes after
-- rates.lua and slices.lua, and before allotment.lua, where KEYS and ARGV are told.
--
-- The field `rate_slices` of an allotment has its slices: 'OWNER/KIND/ROW=UNITS', with commas
-- between them. It is not there if the allotment never had one.

-- Nothing is lent of a limit below this many calls, and at most one part in so many of the rest.
local RATE_CALLS_MIN, RATE_PARTS = 64, 4

-- The limits of the account, once there is something to do with one.
local opened_rates = nil

local function rates_now()
  opened_rates = opened_rates or open_rates(tag, now)
  return opened_rates
end

-- Returns the units by the names of the buckets. A name that cannot be read, a later version has
-- written; it is passed over, since no limit may keep an end from being posted.
local function parse_rate_slices(text)
  local slices = {}
  for id, units in string.gmatch(text, '([^,=]+)=(%d+)') do
    if new_ask(id) then slices[id] = to_number(units) end
  end
  return slices
end

local function format_rate_slices(slices)
  local parts = {}
  for id, units in pairs(slices) do table.insert(parts, id .. '=' .. number_text(units)) end
  return table.concat(parts, ',')
end

-- Returns what a gateway tells of limits: for each what was spent and is needed, what is kept, what
-- should be free, and what one call takes, as
-- 'OWNER/KIND/ROW=PER_MINUTE:BURST:SPENT:NEEDED:KEPT:FREE:UNIT'. Most texts are empty.
local function parse_rate_demands(text)
  local demands = {}
  for one in string.gmatch(text, '[^,]+') do
    local id, numbers = string.match(one, '^(.+)=([%d:%-]+)$')
    local demand, values = id and new_ask(id), {}
    if not demand then error({err = 'ERR rate'}) end
    for value in string.gmatch(numbers, '[^:]+') do table.insert(values, to_number(value)) end
    if #values ~= 7 then error({err = 'ERR rate'}) end
    demand.per_minute, demand.burst = math.max(values[1], 0), math.max(values[2], 0)
    demand.spent, demand.needed, demand.kept = values[3], values[4], values[5]
    demand.free, demand.unit = values[6], values[7]
    table.insert(demands, demand)
  end
  return demands
end

-- Returns what may be lent of so many units that are left.
local function lendable_units(rates, left, unit, others)
  local above = math.max(left, 0) - math.max(unit, 1) * RATE_CALLS_MIN
  if above < 0 then return 0 end
  return rates.divide_down(above, RATE_PARTS * math.max(others, 1))
end

-- Does what a gateway asks of one limit. Returns the new slice.
local function meet_rate_demand(rates, before, demand, is_lending, others)
  local bucket = rates.drain(demand)
  local spent, needed = demand.spent, demand.needed
  -- More may have been used than there was: what an end has corrected.
  rates.fill(bucket, spent - before)
  -- Less than nothing was spent if an end has corrected what was told as spent before.
  rates.unfill(bucket, -spent)
  local slice = math.max(before - math.max(spent, 0), 0)
  local kept = math.max(demand.kept, needed, 0)
  rates.unfill(bucket, slice - kept)
  slice = math.min(slice, kept)
  -- Open calls have their places, even where the store has lost them.
  local missing = math.max(needed - slice, 0)
  rates.fill(bucket, missing)
  slice = slice + missing
  if is_lending then
    local own = math.max(slice - needed, 0)
    local level = math.max(bucket.level - own * MINUTE_MS, 0)
    local left = rates.remaining_of({level = level}, demand)
    local most = lendable_units(rates, left, demand.unit, others)
    local more = math.max(math.min(demand.free, most) - own, 0)
    rates.fill(bucket, more)
    slice = slice + more
  end
  return slice
end

-- Takes units of a slice out of its bucket.
local function return_slice(id, units)
  local rates = rates_now()
  rates.read_buckets({new_ask(id)})
  rates.unfill(rates.buckets[id], units)
end

-- Counts what the gateway has used of limits, takes back what it does not keep, and lends.
local function meet_rate_demands(allotment, demands, is_lending, others)
  if #demands == 0 and not allotment.had_rates then return end
  local rates, slices = rates_now(), {}
  rates.read_buckets(demands)
  for _, demand in ipairs(demands) do
    local before = allotment.rate_slices[demand.id] or 0
    allotment.rate_slices[demand.id] = nil
    slices[demand.id] = meet_rate_demand(rates, before, demand, is_lending, others)
  end
  for id, units in pairs(allotment.rate_slices) do return_slice(id, units) end
  allotment.rate_slices = {}
  for id, units in pairs(slices) do
    if units > 0 then allotment.rate_slices[id] = units end
  end
end

-- Gives back the places of an allotment that is over. What it had of requests and tokens may have
-- been used, and lapses.
local function lapse_rates(allotment)
  for id, units in pairs(allotment.rate_slices) do
    if new_ask(id).kind == 'calls' then return_slice(id, units) end
  end
  allotment.rate_slices = {}
end

-- Writes the slices, if there are any or were.
local function write_rate_slices(allotment)
  if allotment.had_rates or next(allotment.rate_slices) then
    redis.call('HSET', KEYS[2], 'rate_slices', format_rate_slices(allotment.rate_slices))
  end
  if opened_rates then opened_rates.write() end
end

-- Returns what the gateway is told of the limits that it named: the slice, and what there is beside
-- it, as 'OWNER/KIND/ROW=SLICE:ROOM' with commas between them.
local function format_rate_statuses(allotment, demands)
  if #demands == 0 then return '' end
  local rates, parts = rates_now(), {}
  rates.read_buckets(demands)
  for at, demand in ipairs(demands) do
    local slice = allotment.rate_slices[demand.id] or 0
    local room = rates.remaining_of(rates.drain(demand), demand)
    parts[at] = demand.id .. '=' .. number_text(slice) .. ':' .. number_text(room)
  end
  return table.concat(parts, ',')
end
