-- Rate limits: what calls take of them and give back. It does what
-- src/ledger/prepaid/{rate,rate_slices}.rs do, and comes after prelude.lua. Levels and times are
-- whole numbers below 2^53, for which doubles are exact.
--
-- The hash `rate:OWNER`, such as `rate:account` or `rate:key:7`, has the buckets of an owner by
-- 'KIND/ROW': 'LEVEL AT', what is in it in units times the ms of a minute, and when it was looked
-- at last, in unix ms. A bucket that is lost is an empty one. What a call asks for is a text
-- 'OWNER/KIND/ROW=AMOUNT:PER_MINUTE:BURST' for each limit, with commas between them; a '~' in front
-- marks a limit that refuses nothing. A script reads a bucket once, changes it in memory, and
-- writes what has changed at its end.
local MINUTE_MS = 60000
local LEVEL_MAX = 9007199254740991
-- Who waits for a place asks again after this time, in ms.
local PLACE_RETRY_MS = 1000
-- A bucket does not wait for a clock that was set back by more than this, in ms.
local SET_BACK_MAX_MS = MINUTE_MS
-- The buckets of an owner are forgotten so long after the last of them has changed, in ms.
local RATES_KEPT_MS = 2 * ENDED_HOLD_TTL_MS

-- Returns the whole number of a text.
local function to_number(digits)
  local number = tonumber(digits)
  if not number then error({err = 'ERR rate'}) end
  return math.max(math.min(number, LEVEL_MAX), -LEVEL_MAX)
end

-- Returns the digits of a whole number.
local function number_text(number)
  -- The sum makes a plain zero of a negative one.
  return string.format('%.0f', number + 0)
end

-- Takes the name of a bucket apart; nil if it has another form.
local function new_ask(id)
  local owner, field, kind = string.match(id, '^(.+)/((%a+)/%d+)$')
  return owner and {id = id, owner = owner, field = field, kind = kind}
end

-- Opens the rate limits of an account at a time. `tag` is the prefix of its keys. Each run of a
-- script makes its functions anew, so those here are made only where there is a limit.
local function open_rates(tag, now)
  -- The buckets that were read, by 'OWNER/KIND/ROW', and those of them that have changed.
  local buckets, changed_buckets = {}, {}

  -- Returns the whole part of a / b, rounded down.
  local function divide_down(a, b)
    local rest = math.fmod(a, b)
    if rest < 0 then rest = rest + b end
    return (a - rest) / b
  end

  -- Returns what one part of a text says that a call asks for; nil if it has another form.
  local function parse_ask(one)
    local mark, taken, id, amount, per_minute, burst =
      string.match(one, '^(~?)((.+)=(%-?%d+):(%-?%d+):(%-?%d+))$')
    local ask = id and new_ask(id)
    if not ask then return nil end
    ask.text, ask.is_shadow = taken, mark == '~'
    ask.amount = to_number(amount)
    ask.per_minute = math.max(to_number(per_minute), 0)
    ask.burst = math.max(to_number(burst), 0)
    return ask
  end

  -- Returns what a text says that a call asks for.
  local function parse_asks(text)
    local asks = {}
    for one in string.gmatch(text, '[^,]+') do
      local ask = parse_ask(one)
      if not ask then error({err = 'ERR rate'}) end
      table.insert(asks, ask)
    end
    return asks
  end

  -- Returns what the text of a hold says that it took. What cannot be read, a later version has
  -- written; it is passed over, since no limit may keep a charge from being posted.
  local function parse_taken(text)
    local asks = {}
    for one in string.gmatch(text, '[^,]+') do table.insert(asks, parse_ask(one)) end
    return asks
  end

  -- Reads the buckets of some asks that are not known yet, those of one owner at once.
  local function read_buckets(asks)
    local missing = {}
    for _, ask in ipairs(asks) do
      if not buckets[ask.id] then
        missing[ask.owner] = missing[ask.owner] or {}
        table.insert(missing[ask.owner], ask)
      end
    end
    for owner, of_owner in pairs(missing) do
      local key, fields = tag .. 'rate:' .. owner, {}
      for at, ask in ipairs(of_owner) do fields[at] = ask.field end
      local known = redis.call('HMGET', key, unpack(fields))
      for at, ask in ipairs(of_owner) do
        -- A bucket that cannot be read is an empty one, too.
        local level, looked_at = string.match(known[at] or '', '^(%d+) (%-?%d+)$')
        buckets[ask.id] = {key = key, field = ask.field,
          level = to_number(level or '0'), at = to_number(looked_at or '0')}
      end
    end
  end

  local function set_level(bucket, level)
    bucket.level = math.max(math.min(level, LEVEL_MAX), 0)
    if not bucket.has_changed then table.insert(changed_buckets, bucket) end
    bucket.has_changed = true
  end

  -- Puts units in, whether there is room or not.
  local function fill(bucket, amount)
    set_level(bucket, bucket.level + math.max(amount, 0) * MINUTE_MS)
  end

  -- Takes units out that were not used after all.
  local function unfill(bucket, amount)
    set_level(bucket, bucket.level - math.max(amount, 0) * MINUTE_MS)
  end

  -- Returns the bucket of a limit, after it has drained. If the clock was set back by much, a
  -- bucket that drains is empty.
  local function drain(limit)
    local bucket = buckets[limit.id]
    local drained = limit.per_minute * math.max(now - bucket.at, 0)
    bucket.level = math.max(bucket.level - drained, 0)
    if bucket.at - now > SET_BACK_MAX_MS and limit.per_minute > 0 then
      bucket.level, bucket.at = 0, now
    end
    bucket.at = math.max(bucket.at, now)
    return bucket
  end

  -- Returns the whole units that are left of a limit; less than nothing if there is more in its
  -- drained bucket than the burst.
  local function remaining_of(bucket, limit)
    return divide_down(limit.burst * MINUTE_MS - bucket.level, MINUTE_MS)
  end

  -- Whether a drained bucket has room for what a call asks for. A call above the burst passes an
  -- empty one, into debt. If there is no room, the second value is when to try again, in ms from
  -- now, or nil if that is not known.
  local function find_room(bucket, ask)
    local level = math.min(bucket.level + math.max(ask.amount, 0) * MINUTE_MS, LEVEL_MAX)
    local most, is_place = ask.burst * MINUTE_MS, ask.kind == 'calls'
    local passes_empty = bucket.level == 0 and ask.burst > 0 and not is_place
    if level <= most or passes_empty then return true, nil end
    if is_place then return false, PLACE_RETRY_MS end
    if ask.per_minute == 0 or ask.burst == 0 then return false, nil end
    local above = math.min(level - most, bucket.level)
    return false, -divide_down(-above, ask.per_minute)
  end

  -- Returns the reply to a call that limits do not allow: the limit that lets it pass last, when to
  -- try again, and what each limit has left; nil if they allow it.
  local function refuse(asks)
    local refusal, latest = nil, -1
    local reply = {'rate_limited', '', ''}
    for _, ask in ipairs(asks) do
      local bucket = drain(ask)
      local has_room, retry = find_room(bucket, ask)
      local wait = retry or math.huge
      if not has_room and not ask.is_shadow and wait > latest then
        refusal, latest = ask, wait
        reply[2], reply[3] = ask.id, retry and number_text(retry) or ''
      end
      table.insert(reply, number_text(remaining_of(bucket, ask)))
    end
    return refusal and reply
  end

  -- Takes what a call asks for of limits that allow it. What is above a limit that refuses nothing
  -- is not counted. Returns what each limit has left, with a '!' if the call is above it; and the
  -- text of what was taken.
  local function take(asks)
    local readings, taken = {}, {}
    for at, ask in ipairs(asks) do
      local bucket, mark = drain(ask), '!'
      if find_room(bucket, ask) then
        fill(bucket, ask.amount)
        table.insert(taken, ask.text)
        mark = ''
      end
      readings[at] = number_text(remaining_of(bucket, ask)) .. mark
    end
    return readings, table.concat(taken, ',')
  end

  -- Corrects what a hold took by the tokens that its call used in the end, '' if that is not known.
  -- Then what it took stands. Its place is free again.
  local function finish(text, tokens)
    local asks = parse_taken(text)
    read_buckets(asks)
    for _, ask in ipairs(asks) do
      local used = ask.amount
      if ask.kind == 'calls' then used = 0 end
      if ask.kind == 'tokens' and tokens ~= '' then used = to_number(tokens) end
      local bucket = drain(ask)
      unfill(bucket, ask.amount - used)
      fill(bucket, used - ask.amount)
    end
  end

  -- Gives back what a hold took whose call was not made: its place and its tokens. It was a
  -- request.
  local function void(text)
    local asks = parse_taken(text)
    read_buckets(asks)
    for _, ask in ipairs(asks) do
      if ask.kind ~= 'requests' then unfill(buckets[ask.id], ask.amount) end
    end
  end

  -- Writes the buckets that have changed.
  local function write()
    local fields = {}
    for _, bucket in ipairs(changed_buckets) do
      local of_owner = fields[bucket.key] or {}
      fields[bucket.key] = of_owner
      table.insert(of_owner, bucket.field)
      table.insert(of_owner, number_text(bucket.level) .. ' ' .. number_text(bucket.at))
    end
    for key, of_owner in pairs(fields) do
      redis.call('HSET', key, unpack(of_owner))
      redis.call('PEXPIRE', key, RATES_KEPT_MS)
    end
  end

  return {
    parse_asks = parse_asks, read_buckets = read_buckets, buckets = buckets, drain = drain,
    fill = fill, unfill = unfill, remaining_of = remaining_of, divide_down = divide_down,
    refuse = refuse, take = take, finish = finish, void = void, write = write,
  }
end
