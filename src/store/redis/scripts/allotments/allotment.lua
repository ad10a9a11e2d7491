-- An allotment and its account while a script works on them: both are read first, changed in
-- memory, and written at the end, all of it or nothing. It is the machine of
-- src/ledger/prepaid/allotment.rs. It comes after lots.lua, windows.lua, recall.lua, slices.lua and
-- rate_slices.lua.
--
-- What an allotment holds is in a record like that of a hold, with the same `state`, `held` and
-- `lease_until`. So a version of the program that does not know allotments sees a hold with a
-- lease.
local account_key, hold_key, open_key = KEYS[1], KEYS[2], KEYS[3]
-- The calls of the allotment that have checkpoints, or had one that was charged when the allotment
-- ended: 'CHARGE HELD LINE' by the id of the call; 'CHARGE HELD@WINDOWS LINE' if it counts in some.
local calls_key = KEYS[5]
-- The ids of the account's allotments that hold something, or may.
local allotments_key = KEYS[6]

-- Whether there are any.
local has_checkpoints = redis.call('EXISTS', calls_key) == 1

-- What the store writes at the end: lines of the journal, and the calls whose checkpoints go.
local lines, ended_calls = {}, {}
-- Whether the store may have holds of the calls whose ends are posted. A call whose hold was in the
-- memory of a gateway has one only if it was voided.
local has_holds = true
-- What the gateway has to log: calls that were not paid in full, or were voided before.
local notes = {}

local function read_account()
  local known = redis.call('HMGET', account_key, 'available', 'held', 'posted', 'written_off',
    'lent_out', 'recall_until', 'has_budgets', 'revision', 'lots')
  if not known[1] then return nil end
  local lots = known[9] and find_lots(account_key)
  return {
    -- The lots beside that of payments; nil if there are none.
    lots = lots or nil,
    available = lots and lots.available or to_amount(known[1]),
    held = to_amount(known[2]),
    posted = to_amount(known[3]),
    written_off = to_amount(known[4]),
    lent_out = tonumber(known[5] or '0'),
    recall_until = tonumber(known[6] or '0'),
    has_budgets = known[7] == '1',
    revision = known[8] or '0',
  }
end

local function new_allotment(state)
  return {
    state = state, held = ZERO, lease_until = now, lent_at = now, last_seq = 0, last_step = 0,
    needed = ZERO, open_calls = '0', may_be_free = false, tight = false, was_counted = false,
    slices = {}, rate_slices = {}, had_rates = false,
    -- What it has drawn of named lots; nil if the account has none.
    parts = nil, had_parts = false,
  }
end

-- Reads the allotment; nil if it is unknown. Its state is 'open', 'fenced' or 'ended'.
local function read_allotment(account)
  local known = redis.call('HMGET', hold_key, 'state', 'held', 'lease_until', 'lent_at',
    'last_seq', 'last_step', 'needed', 'open_calls', 'may_be_free', 'tight', 'fenced', 'has_slices',
    'rate_slices', 'lots')
  if not known[4] then return nil end
  local allotment = new_allotment('ended')
  allotment.lent_at = tonumber(known[4])
  allotment.last_seq, allotment.last_step = tonumber(known[5]), tonumber(known[6])
  allotment.was_counted, allotment.had_parts = known[9] == '1', known[14] ~= false
  if known[12] == '1' then allotment.slices = read_slices() end
  if known[13] and known[13] ~= '' then
    allotment.rate_slices, allotment.had_rates = parse_rate_slices(known[13]), true
  end
  if known[1] == 'open' then
    allotment.state = known[11] == '1' and 'fenced' or 'open'
    allotment.held, allotment.lease_until = to_amount(known[2]), tonumber(known[3])
    allotment.needed, allotment.open_calls = to_amount(known[7]), known[8]
    if account.lots then allotment.parts = account.lots.parse(known[14], allotment.held) end
    allotment.may_be_free, allotment.tight = allotment.was_counted, known[10] == '1'
  elseif known[1] ~= 'ended' then
    -- A version that does not know allotments has ended it, and charged no checkpoint.
    redis.call('DEL', calls_key)
    release_slices(allotment)
  end
  -- One that does not know rate limits has left it its places.
  if known[1] ~= 'open' then lapse_rates(allotment) end
  return allotment
end

local function is_out(allotment)
  return allotment.state ~= 'ended'
end

-- Whether somebody was told that a call is not charged.
local function is_voided(call)
  local state = redis.call('HGET', tag .. 'hold:' .. call, 'state')
  return state == 'voided' or state == 'tombstone'
end

-- Draws an amount that is available.
local function draw(account, allotment, amount)
  account.available = minus(account.available, amount)
  account.held = plus(account.held, amount)
  allotment.held = plus(allotment.held, amount)
  local lots = account.lots
  if lots then allotment.parts = lots.merge(allotment.parts or {}, lots.draw(amount)) end
end

-- Gives an amount back that was drawn, with these parts. What belongs to a lot that has expired
-- expires now.
local function give_back(account, amount, parts)
  account.held = minus(account.held, amount)
  account.available = plus(account.available, amount)
  if not account.lots then return end
  account.available = minus(account.available, account.lots.give_back(parts or {}))
  for _, line in ipairs(account.lots.lines) do table.insert(lines, line) end
  account.lots.lines = {}
end

-- Posts a charge, of which `covered` was held, with these parts of named lots. The rest comes from
-- what is available, and then it is written off. `texts` names the windows in which it counts.
local function post_charge(account, call, covered, parts, charge, line, texts)
  local above = minus(charge, covered)
  local paid = smaller(above, account.available)
  local written_off = minus(above, paid)
  account.held = minus(account.held, covered)
  account.available = minus(account.available, paid)
  account.posted = plus(account.posted, charge)
  if is_below(ZERO, written_off) then
    account.written_off = plus(account.written_off, written_off)
    table.insert(notes, {'written_off', call, to_digits(written_off)})
  end
  local above_limit = ZERO
  for _, window in ipairs(parse_windows(tag, texts)) do
    local excess_here = spend_in(window, charge, now)
    if is_below(above_limit, excess_here) then above_limit = excess_here end
  end
  line = tell_over_budget(tell_windows(line, texts), above_limit, above)
  if account.lots then
    local lots = account.lots
    line = lots.tell(line, lots.merge(lots.post(parts or {}), lots.pay(paid)))
  end
  table.insert(lines, to_digits(charge) .. ' ' .. to_digits(written_off) .. ' ' .. line)
end

-- Posts the end of a call out of an allotment that is out.
local function post_end(account, allotment, call, held, charge, line, texts)
  if has_checkpoints then table.insert(ended_calls, call) end
  if charge == '' then return end
  -- Whoever was told that the call is void may have made it again.
  if has_holds and is_voided(call) then
    table.insert(notes, {'voided', call, charge})
    return
  end
  charge = to_amount(charge)
  local within_hold = smaller(charge, to_amount(held))
  for _, window in ipairs(parse_windows(tag, texts)) do
    shrink_slice(allotment, window, within_hold)
  end
  local covered = smaller(within_hold, allotment.held)
  allotment.held = minus(allotment.held, covered)
  local lots = account.lots
  local parts = lots and lots.split_first(allotment.parts or {}, covered)
  post_charge(account, call, covered, parts, charge, line, texts)
end

local function format_checkpoint(charge, held, line, texts)
  if texts ~= '' then held = held .. '@' .. texts end
  return charge .. ' ' .. held .. ' ' .. line
end

-- Takes the parts of a checkpoint apart: the charge, what was held, the line, the windows.
local function parse_checkpoint(text)
  local charge, held, texts, line = string.match(text, '^(%d+) (%d+)@(%S+) (.*)$')
  if charge then return charge, held, line, texts end
  charge, held, line = string.match(text, '^(%d+) (%d+) (.*)$')
  return charge, held, line, ''
end

-- Ends an allotment: charges its checkpoints, and gives back the rest.
local function end_allotment(account, allotment)
  local checkpoints, calls = {}, {}
  local all = redis.call('HGETALL', calls_key)
  for at = 1, #all, 2 do checkpoints[all[at]] = all[at + 1] end
  for _, call in ipairs(ended_calls) do checkpoints[call] = nil end
  for call in pairs(checkpoints) do table.insert(calls, call) end
  table.sort(calls)
  allotment.charged = {}
  for _, call in ipairs(calls) do
    local charge, held, line, texts = parse_checkpoint(checkpoints[call])
    if charge ~= '0' and not is_voided(call) then
      post_end(account, allotment, call, held, charge, line, texts)
      table.insert(allotment.charged, call)
      table.insert(allotment.charged, charge .. ' 0 ')
    end
  end
  release_slices(allotment)
  lapse_rates(allotment)
  give_back(account, allotment.held, allotment.parts)
  allotment.held, allotment.needed, allotment.open_calls = ZERO, ZERO, '0'
  allotment.parts = nil
  allotment.may_be_free, allotment.state = false, 'ended'
end

-- Writes the allotment, whether it is out or has just ended, and its calls.
local function write_allotment(account, allotment)
  local is_counted = is_out(allotment) and allotment.may_be_free
  if is_counted and not allotment.was_counted then
    account.lent_out = account.lent_out + 1
  elseif allotment.was_counted and not is_counted then
    account.lent_out = math.max(account.lent_out - 1, 0)
  end
  local function flag(is_set) return is_set and '1' or '0' end
  local held, lease_until = to_digits(allotment.held), string.format('%.0f', allotment.lease_until)
  redis.call('HSET', hold_key, 'state', is_out(allotment) and 'open' or 'ended', 'wanted', held,
    'least', '0', 'held', held, 'lease_until', lease_until,
    'lent_at', string.format('%.0f', allotment.lent_at),
    'last_seq', string.format('%.0f', allotment.last_seq),
    'last_step', string.format('%.0f', allotment.last_step),
    'needed', to_digits(allotment.needed), 'open_calls', allotment.open_calls,
    'may_be_free', flag(is_counted), 'tight', flag(allotment.tight),
    'fenced', flag(allotment.state == 'fenced'))
  if allotment.parts and #allotment.parts > 0 then
    redis.call('HSET', hold_key, 'lots', account.lots.format(allotment.parts))
  elseif allotment.had_parts then
    redis.call('HDEL', hold_key, 'lots')
  end
  if is_out(allotment) then
    redis.call('PERSIST', hold_key)
    redis.call('ZADD', open_key, lease_until, id)
    redis.call('SADD', allotments_key, id)
    if #ended_calls > 0 then redis.call('HDEL', calls_key, unpack(ended_calls)) end
    return
  end
  redis.call('ZREM', open_key, id)
  redis.call('SREM', allotments_key, id)
  redis.call('PEXPIRE', hold_key, ENDED_HOLD_TTL_MS)
  if allotment.charged then
    redis.call('DEL', calls_key)
    if #allotment.charged > 0 then redis.call('HSET', calls_key, unpack(allotment.charged)) end
  end
  redis.call('PEXPIRE', calls_key, ENDED_HOLD_TTL_MS)
end

-- Writes everything that has changed.
local function write_all(account, allotment)
  if #lines > 0 then note_hour(account_key) end
  write_allotment(account, allotment)
  write_slices(allotment)
  write_rate_slices(allotment)
  write_windows(now)
  if account.lots then account.lots.save() end
  redis.call('HSET', account_key, 'available', to_digits(account.available),
    'held', to_digits(account.held), 'posted', to_digits(account.posted),
    'written_off', to_digits(account.written_off),
    'lent_out', string.format('%.0f', account.lent_out),
    'recall_until', string.format('%.0f', account.recall_until))
  if #lines > 0 then append_lines(account_key, lines) end
end

-- Adds the notes to a reply.
local function with_notes(reply)
  for _, note in ipairs(notes) do
    for _, text in ipairs(note) do table.insert(reply, text) end
  end
  return reply
end
