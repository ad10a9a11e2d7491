-- Does what a message of a gateway about its allotment asks: posts the ends of calls whose numbers
-- are new, notes checkpoints, gives back or lends, and renews the lease.
-- KEYS: see allotment.lua.
-- ARGV: the id of the allotment; the number of the message, 0 for that of a successor; when the
--   allotment was lent first, in unix ms, as far as the sender knows; the number of the first end;
--   '1' if the ends before it are lost; '1' if the allotment ends with this message; the lease in
--   ms; '1' if anything may be lent; the numbers of ends and of checkpoints; then, if the gateway
--   tells what it needs, '1', what is needed and kept, what should be free, the largest quote, and
--   the number of open calls, else '0' and five times '0'; the sum of the charges, if each is
--   covered by its hold, else ''; what is needed and kept by window, and what should be free for
--   each key, three texts 'NAME AMOUNT,NAME AMOUNT'; what was used of rate limits and is wanted of
--   them, the text of rate_slices.lua; '1' if calls count in windows; then for each end and
--   checkpoint the id of the call, what was held, the charge or '', the journal line, and if calls
--   count in windows the text of these.
-- Reply: 'status', the numbers of the last message and end, when the allotment was lent first, what
--   it holds, '1' if it is tight, what there is of budgets: '', or 'REVISION;' and the text of
--   slices.lua, what there is of rate limits, the text of rate_slices.lua, and in how many ms the
--   first part of what is free expires, and of all that it holds, '' if none does; or
--   'missing_ends' or 'ended' and the number of the last end; 'unknown'; 'too_many';
--   'out_of_range'; or 'no_account'.
--   After that three texts for each note: 'written_off' or 'voided', the id of the call, and the
--   amount.

-- One message has at most this many ends, and an allotment at most this many checkpoints.
local CALLS_MAX = 1024
-- Nothing is lent of an amount below this many quotes, and at most one part in so many of the rest.
local QUOTES_MIN, PARTS = 64, 4
-- No allotment is shared by more gateways than this.
local SHARES_MAX = 100000

local step, lent_at, first_seq = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local is_earlier_lost, is_retired = ARGV[5] == '1', ARGV[6] == '1'
local lease, may_lend = tonumber(ARGV[7]), ARGV[8] == '1'
local ends, checkpoints = tonumber(ARGV[9]), tonumber(ARGV[10])
local COVERED = ARGV[17]
local HAS_WINDOWS, FIRST_CALL = ARGV[22] == '1', 23
-- Each call has so many texts.
local WIDTH = HAS_WINDOWS and 5 or 4

-- Takes a text 'NAME AMOUNT,NAME AMOUNT' apart. Most are empty.
local function parse_amounts(text)
  local amounts = {}
  for name, digits in string.gmatch(text, '([^ ,]+) (%d+)') do amounts[name] = to_amount(digits) end
  return amounts
end

local needed_in, kept_in = parse_amounts(ARGV[18]), parse_amounts(ARGV[19])
local free_by_key = parse_amounts(ARGV[20])
local rate_demands = parse_rate_demands(ARGV[21])

-- Returns the id of a call, what was held, the charge, the line and the windows.
local function call_at(number)
  local at = FIRST_CALL + WIDTH * number
  return ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], HAS_WINDOWS and ARGV[at + 4] or ''
end

-- Returns the account, and the keys that the gateway asks for, as owners of budgets.
local function asking_owners()
  local owners = {'account'}
  for key in pairs(free_by_key) do table.insert(owners, 'key:' .. key) end
  return owners
end

-- Returns in how many ms the first of some parts expires, as a text; '' if none does.
local function format_expiry(parts)
  local first = parts and parts[1]
  if not first or first.expires == math.huge then return '' end
  return string.format('%.0f', first.expires - now)
end

-- Returns the parts of what is free: what its gateway does not need would go back.
local function free_parts(account, allotment)
  if ARGV[11] ~= '1' or not allotment.parts then return nil end
  local lots = account.lots
  local copy = lots.merge({}, allotment.parts)
  return lots.split_last(copy, excess(allotment.held, to_amount(ARGV[12])), allotment.held)
end

local function status(account, allotment)
  local budgets = ''
  if account.has_budgets or next(allotment.slices) then
    budgets = account.revision .. ';' .. format_slices(allotment, asking_owners())
  end
  return with_notes({
    'status', string.format('%.0f', allotment.last_step), string.format('%.0f', allotment.last_seq),
    string.format('%.0f', allotment.lent_at), to_digits(allotment.held),
    allotment.tight and '1' or '0', budgets, format_rate_statuses(allotment, rate_demands),
    format_expiry(free_parts(account, allotment)), format_expiry(allotment.parts),
  })
end

-- Looks for all holds of calls at once: there is nearly never one.
local function find_holds()
  local holds = {}
  for number = 0, ends - 1 do holds[number + 1] = tag .. 'hold:' .. call_at(number) end
  has_holds = ends > 0 and redis.call('EXISTS', unpack(holds)) > 0
end

-- Counts the charges of covered ends in their windows. Most calls of one key have the same
-- windows.
local function count_covered_ends(allotment)
  local sums = {}
  for at = FIRST_CALL, FIRST_CALL + WIDTH * (ends - 1), WIDTH do
    local texts = ARGV[at + 4]
    sums[texts] = plus(sums[texts] or ZERO, to_amount(ARGV[at + 2]))
  end
  for texts, sum in pairs(sums) do
    for _, window in ipairs(parse_windows(tag, texts)) do
      shrink_slice(allotment, window, sum)
      spend_in(window, sum, now)
    end
  end
end

-- Posts all ends at once if each is new, is covered, and was voided by nobody, as nearly always.
-- Returns whether it did.
local function post_covered_ends(account, allotment)
  local is_plain = COVERED ~= '' and not has_holds and is_out(allotment)
  if not is_plain or first_seq ~= allotment.last_seq + 1 then return false end
  -- The line of each tells which lots have paid.
  if allotment.parts and #allotment.parts > 0 then return false end
  local total = to_amount(COVERED)
  if is_below(allotment.held, total) then return false end
  local count = 0
  for at = FIRST_CALL, FIRST_CALL + WIDTH * (ends - 1), WIDTH do
    count = count + 1
    local line = ARGV[at + 3]
    if HAS_WINDOWS then line = tell_windows(line, ARGV[at + 4]) end
    lines[count] = ARGV[at + 2] .. ' 0 ' .. line
    if has_checkpoints then ended_calls[count] = ARGV[at] end
  end
  if HAS_WINDOWS then count_covered_ends(allotment) end
  allotment.held = minus(allotment.held, total)
  account.held = minus(account.held, total)
  account.posted = plus(account.posted, total)
  allotment.last_seq = allotment.last_seq + ends
  return true
end

local function post_ends(account, allotment)
  find_holds()
  if post_covered_ends(account, allotment) then return end
  for number = 0, ends - 1 do
    local seq = first_seq + number
    if seq > allotment.last_seq then
      local call, held, charge, line, texts = call_at(number)
      if is_out(allotment) then
        post_end(account, allotment, call, held, charge, line, texts)
      elseif charge ~= '' and has_holds and is_voided(call) then
        table.insert(notes, {'voided', call, charge})
      elseif charge ~= '' then
        -- The number keeps an end from being posted twice, so what was charged stays as it is.
        local before = parse_checkpoint(redis.call('HGET', calls_key, call) or '0 0 ')
        local due = excess(to_amount(charge), to_amount(before))
        post_charge(account, call, ZERO, nil, due, line, texts)
      end
      allotment.last_seq = seq
    end
  end
end

-- Returns the fields and values of the checkpoints that are higher than the last one of their call;
-- nil if there would be too many in all.
local function find_new_checkpoints()
  local known = {}
  if has_checkpoints then
    local all = redis.call('HGETALL', calls_key)
    for at = 1, #all, 2 do known[all[at]] = all[at + 1] end
  end
  for _, call in ipairs(ended_calls) do known[call] = nil end
  local new = {}
  for number = ends, ends + checkpoints - 1 do
    local call, held, charge, line, texts = call_at(number)
    local before = known[call] and to_amount((parse_checkpoint(known[call])))
    if not before or is_below(before, to_amount(charge)) then
      known[call] = format_checkpoint(charge, held, line, texts)
      table.insert(new, call)
      table.insert(new, known[call])
    end
  end
  local count = 0
  for _ in pairs(known) do count = count + 1 end
  if count > CALLS_MAX then return nil end
  return new
end

-- Returns what may be lent of what is left; nil if that is too little for lending.
local function lendable(left, quote, others)
  local floor = {quote[1] * QUOTES_MIN, quote[2] * QUOTES_MIN}
  local carried = math.floor(floor[2] / BILLION)
  floor = {floor[1] + carried, floor[2] - carried * BILLION}
  if is_below(MAX_AMOUNT, floor) or is_below(left, floor) then return nil end
  return divide(excess(left, floor), PARTS * math.min(math.max(others, 1), SHARES_MAX))
end

-- Returns how much of `most` may be lent of each of some windows; nil if one of them has too little
-- left.
local function lendable_in(allotment, counted, quote, others, most)
  for _, window in ipairs(counted) do
    local left = left_in(window)
    local own = excess(slice_of(allotment, window), needed_in[window.text] or ZERO)
    if not is_below(excess(MAX_AMOUNT, left), own) then left = plus(left, own) end
    local part = lendable(left, quote, others)
    if not part then return nil end
    most = smaller(most, part)
  end
  return most
end

-- Takes back what the gateway does not keep of its slices.
local function shrink_slices(allotment)
  local surplus = {}
  for text, slice in pairs(allotment.slices) do
    local kept = larger(needed_in[text] or ZERO, kept_in[text] or ZERO)
    if is_below(kept, slice) then surplus[text] = minus(slice, kept) end
  end
  for text, amount in pairs(surplus) do shrink_slice(allotment, window_of(tag, text), amount) end
end

-- Gives what is needed in windows and not there, as far as they have it left. Returns whether that
-- was too little.
local function cover_needed_in(allotment)
  local is_short = false
  for text, needed in pairs(needed_in) do
    local window = window_of(tag, text)
    local missing = excess(needed, slice_of(allotment, window))
    local more = smaller(missing, left_in(window))
    grow_slice(allotment, window, more)
    -- Of a window of which others have nothing a recall gives nothing.
    local is_lent = is_below(slice_of(allotment, window), window.lent)
    is_short = is_short or (is_lent and is_below(more, missing))
  end
  return is_short
end

-- Grows slices until so much of each is free.
local function grow_free(allotment, counted, free)
  for _, window in ipairs(counted) do
    local own = excess(slice_of(allotment, window), needed_in[window.text] or ZERO)
    grow_slice(allotment, window, excess(free, own))
  end
end

-- Whether there is more of a slice than is needed.
local function is_free_in(allotment, window)
  return is_below(needed_in[window.text] or ZERO, slice_of(allotment, window))
end

-- Gives slices of the windows of keys. A key of which too little is left gets none: its calls go to
-- the store. If it still has something free, all that is free has to come back once.
local function lend_to_keys(allotment, free, quote, others)
  for key, wanted in pairs(free_by_key) do
    local counted = windows_of(tag, window_texts_at(tag, {'key:' .. key}, now))
    local limit = lendable_in(allotment, counted, quote, others, MAX_AMOUNT)
    if limit then
      grow_free(allotment, counted, smaller(smaller(free, wanted), limit))
    else
      for _, window in ipairs(counted) do
        allotment.tight = allotment.tight or is_free_in(allotment, window)
      end
    end
  end
end

local function has_free_slice(allotment)
  for text, slice in pairs(allotment.slices) do
    if is_below(needed_in[text] or ZERO, slice) then return true end
  end
  return false
end

-- Takes a surplus out of the parts of an allotment, and returns it. Of credit that has expired no
-- more is kept than running calls may have drawn; of the rest that which is drawn last goes back.
local function split_surplus(account, allotment, surplus, needed)
  local lots, parts = account.lots, allotment.parts
  if not parts then return nil end
  local expired = lots.split_expired(parts, now)
  local total = lots.total(expired)
  local over = smaller(excess(total, needed), surplus)
  local back = lots.split_last(expired, over, total)
  lots.merge(parts, expired)
  local rest = minus(surplus, over)
  return lots.merge(back, lots.split_last(parts, rest, minus(allotment.held, over)))
end

-- Takes back what the gateway does not keep, gives what it needs, and lends what it wants beside
-- that. See src/ledger/prepaid/lend.rs.
local function meet_demand(account, allotment)
  local needed, kept = to_amount(ARGV[12]), to_amount(ARGV[13])
  local wanted, quote = to_amount(ARGV[14]), to_amount(ARGV[15])
  allotment.needed, allotment.open_calls = needed, ARGV[16]
  local others = account.lent_out
  if allotment.was_counted then others = math.max(others - 1, 0) end
  local surplus = excess(allotment.held, larger(needed, kept))
  local back = split_surplus(account, allotment, surplus, needed)
  allotment.held = minus(allotment.held, surplus)
  give_back(account, surplus, back)
  shrink_slices(allotment)
  local missing = excess(needed, allotment.held)
  local more = smaller(missing, account.available)
  draw(account, allotment, more)
  local is_short = cover_needed_in(allotment) or is_below(more, missing)
  if is_short and others > 0 then account.recall_until = now + RECALL_MS end
  local own_free = excess(allotment.held, needed)
  local counted, limit = {}, nil
  if account.has_budgets then
    -- The limits of all keys are read at once.
    window_texts_at(tag, asking_owners(), now)
    counted = windows_of(tag, window_texts_at(tag, {'account'}, now))
  end
  if may_lend and account.recall_until <= now and is_below(ZERO, wanted) then
    limit = lendable(plus(account.available, own_free), quote, others)
    limit = limit and lendable_in(allotment, counted, quote, others, limit)
  end
  allotment.tight = limit == nil
  meet_rate_demands(allotment, rate_demands, limit ~= nil, others)
  if limit then
    local free = smaller(wanted, limit)
    draw(account, allotment, excess(free, own_free))
    grow_free(allotment, counted, free)
    if account.has_budgets then lend_to_keys(allotment, free, quote, others) end
    allotment.may_be_free = is_below(ZERO, allotment.held)
  else
    -- What the gateway keeps until it has the answer may still be free.
    allotment.may_be_free = is_below(ZERO, own_free) or has_free_slice(allotment)
  end
end

local function update(account, allotment)
  if allotment.state == 'open' and step > 0 and step <= allotment.last_step then
    return status(account, allotment)
  end
  if allotment.state == 'open' and step == 0 then allotment.state = 'fenced' end
  if ends > 0 and first_seq > allotment.last_seq + 1 and not is_earlier_lost then
    return {'missing_ends', string.format('%.0f', allotment.last_seq)}
  end
  post_ends(account, allotment)
  local new_checkpoints = {}
  if allotment.state ~= 'open' then
    if is_retired and step == 0 and is_out(allotment) then end_allotment(account, allotment) end
  else
    if checkpoints > 0 then
      new_checkpoints = find_new_checkpoints()
      if not new_checkpoints then return {'too_many'} end
    end
    allotment.last_step = step
    allotment.lease_until = math.max(allotment.lease_until, now + lease)
    if ARGV[11] == '1' then meet_demand(account, allotment) end
  end
  if is_out_of_range then return {'out_of_range'} end
  write_all(account, allotment)
  if #new_checkpoints > 0 then
    redis.call('HSET', calls_key, unpack(new_checkpoints))
    -- No call is open for so long.
    redis.call('PEXPIRE', calls_key, 2 * ENDED_HOLD_TTL_MS)
  end
  if allotment.state == 'open' then return status(account, allotment) end
  return with_notes({'ended', string.format('%.0f', allotment.last_seq)})
end

if ends > CALLS_MAX or checkpoints > CALLS_MAX then return {'too_many'} end
local account = read_account()
if not account then return {'no_account'} end
local allotment = read_allotment(account)
if not allotment and step > 0 then
  allotment = new_allotment('open')
elseif not allotment then
  -- An older one may have ended already, and its record may have expired since.
  if math.abs(now - lent_at) >= ENDED_HOLD_TTL_MS / 2 then return {'unknown'} end
  allotment = new_allotment('ended')
end
return update(account, allotment)
