-- Counts the places of calls anew that have been taken and not given back. It comes after
-- rates.lua.
--
-- A version of the program that does not know rate limits ends a hold like any other, and leaves
-- its places taken. So before a call is refused for want of a place, the open holds are asked what
-- they have.

-- The places of an account are counted at most once in this time, in ms.
local RECOUNT_MS = 10000
-- Beyond so many open holds they are not counted, since other calls wait for the script.
local RECOUNT_HOLDS_MAX = 2000

-- Adds the places that a text of asks or of slices names to the sums of buckets.
local function add_places(sums, text)
  for id, amount in string.gmatch(text, '([^,=]+/calls/%d+)=(%d+)') do
    sums[id] = (sums[id] or 0) + to_number(amount)
  end
end

-- Whether it is time to count again. If so, it notes the time.
local function begin_recount(tag, open, now)
  local key = tag .. 'rate:account'
  local age = now - to_number(redis.call('HGET', key, 'recounted_at') or '0')
  if age >= 0 and age < RECOUNT_MS then return false end
  redis.call('HSET', key, 'recounted_at', number_text(now))
  redis.call('PEXPIRE', key, RATES_KEPT_MS)
  return redis.call('ZCARD', open) <= RECOUNT_HOLDS_MAX
end

-- Takes the places out of the buckets of some asks that no open hold and no allotment has. Returns
-- whether there was one. `open` is the key of the account's open holds.
local function recount_places(rates, tag, open, asks, now)
  local sums, has_changed = {}, false
  if not begin_recount(tag, open, now) then return false end
  for _, id in ipairs(redis.call('ZRANGE', open, 0, -1)) do
    local known = redis.call('HMGET', tag .. 'hold:' .. id, 'state', 'rates', 'rate_slices')
    if known[1] == 'open' then
      add_places(sums, known[2] or '')
      add_places(sums, known[3] or '')
    end
  end
  for _, ask in ipairs(asks) do
    local bucket = rates.buckets[ask.id]
    local units = math.ceil(bucket.level / MINUTE_MS) - (sums[ask.id] or 0)
    if ask.kind == 'calls' and units > 0 then
      rates.unfill(bucket, units)
      has_changed = true
    end
  end
  if has_changed then rates.write() end
  return has_changed
end

-- Returns the reply to a call that limits do not allow; nil if they allow it.
local function check_rates(rates, tag, open, asks, now)
  rates.read_buckets(asks)
  local refusal = rates.refuse(asks)
  local is_for_place = refusal and string.find(refusal[2], '/calls/', 1, true)
  if is_for_place and recount_places(rates, tag, open, asks, now) then
    refusal = rates.refuse(asks)
  end
  return refusal
end
