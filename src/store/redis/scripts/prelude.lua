-- Common functions, at the beginning of every script.
-- Amounts are strings of decimal digits throughout, in nano-USD: the numbers of a script are
-- doubles and would lose nano-USD above 2^53. The server itself adds and subtracts amounts exactly,
-- in 64 bits.

-- Whether an amount has at most 19 digits and nothing else.
local function is_amount(amount)
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

-- Returns the amount a - b, with a '-' in front if it is negative. The server computes it in a
-- field of the hash `scratch`, which is deleted again.
local function difference(scratch, a, b)
  redis.call('HSET', scratch, 'scratch', a)
  subtract(scratch, 'scratch', b)
  local result = redis.call('HGET', scratch, 'scratch')
  redis.call('HDEL', scratch, 'scratch')
  return result
end

-- Returns the prefix of an account's keys, which contains the hash tag, from the key `account`.
local function tag_of(account)
  return string.sub(account, 1, -8)
end

-- Whether an account is deleted: nothing comes into it, and no call begins.
local function is_deleted(account)
  return redis.call('HEXISTS', account, 'deleted_at') == 1
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the number of the last line that has left the journal of an account for the archive: the
-- line with the index 0 has the number after it.
local function journal_base(account)
  return tonumber(redis.call('HGET', account, 'journal_base') or '0')
end

-- Returns the number of the last line of a journal, with those that have left it counted.
local function journal_length(account, journal)
  return journal_base(account) + redis.call('LLEN', journal)
end

-- Notes the hour from which on lines are appended to the journal of an account. A script calls it
-- before it writes anything else: while a slot of a cluster moves, a key that is gone ends the
-- script. A clock that was set back leaves lines in the hour of the line before them, but not if
-- it is more than a day: then it was wrong before.
local function note_hour(account)
  local now = now_ms()
  local hour = now - now % 3600000
  local known = tonumber(redis.call('HGET', account, 'journal_hour') or '0')
  if hour > known or hour < known - 86400000 then
    local tag, text = tag_of(account), string.format('%.0f', hour)
    local first = journal_length(account, tag .. 'journal')
    -- There may be a mark of a line that never came.
    redis.call('ZREMRANGEBYSCORE', tag .. 'journal-hours', first, first)
    redis.call('ZADD', tag .. 'journal-hours', first, first .. ' ' .. text)
    redis.call('HSET', account, 'journal_hour', text)
  end
end

-- Appends lines to the journal of an account.
local function append_lines(account, lines)
  note_hour(account)
  redis.call('RPUSH', tag_of(account) .. 'journal', unpack(lines))
end

-- A hold that has ended is remembered for this time, in ms (one day), so that a repeated operation
-- gets the same reply. forgotten.lua has a shorter time for one that was charged.
local ENDED_HOLD_TTL_MS = 86400000

-- Takes an amount from what is available, and writes off the part that is not available. Returns
-- the part that was written off.
local function charge_available(account, scratch, amount)
  local available = redis.call('HGET', account, 'available')
  local paid = amount
  if less(available, amount) then paid = available end
  local written_off = difference(scratch, amount, paid)
  subtract(account, 'available', paid)
  add(account, 'written_off', written_off)
  return written_off
end

-- Adds a charge to what is posted; false if the sum would exceed 64 bits. It must run before
-- anything else changes, because a script that fails half-way keeps what it has written. No other
-- sum can exceed its range: what is written off is never more than what is posted.
local function add_to_posted(account, charge)
  if charge == '0' then return true end
  return type(redis.pcall('HINCRBY', account, 'posted', charge)) == 'number'
end

-- Charges an open hold. The part that the hold does not cover comes from what is available, and the
-- rest is written off.
-- Returns the part that was written off; nil if the charge does not fit, and then nothing has
-- changed.
local function post(account, hold, held, charge)
  if not add_to_posted(account, charge) then return nil end
  subtract(account, 'held', held)
  if less(held, charge) then
    return charge_available(account, hold, difference(hold, charge, held))
  end
  -- This sum cannot exceed its range: the held amount was part of what is available before.
  add(account, 'available', held)
  subtract(account, 'available', charge)
  return '0'
end
