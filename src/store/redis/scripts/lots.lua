-- Credit in lots: where it came from, and when it expires. It does what
-- src/ledger/prepaid/{lot,draft}.rs do, and comes after amounts.lua.
--
-- The field `lots` of an account has its lots beside that of payments: 'NAME AVAILABLE HELD', with
-- commas between them, in the order in which they are drawn. A name is such as
-- '1795564800000/promotion' or 'never/voucher'. The rest of what is available and held is the lot
-- of payments. The field `lots` of a hold or an allotment has what it has drawn of named lots:
-- 'NAME AMOUNT,NAME AMOUNT'. There is no such field where there is nothing to say, and what a hold
-- has drawn counts as payments if its account has none.
local LOTS_MAX = 16
local LOT_OF_PAYMENTS = 'never/paid'

-- Takes the name of a lot apart. Of lots that expire together, the lower rank is drawn first.
local function new_lot(name)
  local at, source = string.match(name, '^(%-?%w+)/(%a+)$')
  local rank = ({promotion = 1, voucher = 2, paid = 3})[source or '']
  local expires = at == 'never' and math.huge or tonumber(at or '')
  if not (rank and expires) then error({err = 'ERR lot'}) end
  return {name = name, expires = expires, rank = rank, available = ZERO, held = ZERO, amount = ZERO}
end

-- Opens the lots of an account, which has these amounts. Each run of a script makes its functions
-- anew, so those here are made only where there is a lot. What changes is in memory until
-- `write`; the script itself changes what is available and held, except for what expires. Parts
-- are the amounts of named lots, in the order in which these are drawn. `lots.available` stays what
-- it was at first.
local function open_lots(account, text, available, held)
  local lots = {list = {}, available = available, expired = ZERO, lines = {}}

  -- Returns the record of a lot in a list, which is made if it is not there.
  local function record_of(list, lot)
    local at = 1
    for _, known in ipairs(list) do
      if known.name == lot.name then return known end
      local is_before = known.expires < lot.expires
      if is_before or (known.expires == lot.expires and known.rank < lot.rank) then at = at + 1 end
    end
    table.insert(list, at, new_lot(lot.name))
    return list[at]
  end

  local function drop_empty_parts(parts)
    for at = #parts, 1, -1 do
      if not is_below(ZERO, parts[at].amount) then table.remove(parts, at) end
    end
  end

  local function close_lots()
    for at = #lots.list, 1, -1 do
      local lot = lots.list[at]
      if not is_below(ZERO, larger(lot.available, lot.held)) then table.remove(lots.list, at) end
    end
  end

  -- Lowers the amounts of some records until their sum is at most `limit`, those that are drawn
  -- first before others: a version that does not know lots has drawn them.
  local function clamp(list, field, limit)
    for at = #list, 1, -1 do
      if is_below(limit, list[at][field]) then
        list[at][field], lots.is_clamped = limit, true
      end
      limit = minus(limit, list[at][field])
    end
  end

  local function add_part(parts, lot, amount)
    if not is_below(ZERO, amount) then return end
    local part = record_of(parts, lot)
    part.amount = plus(part.amount, amount)
  end

  local function split(parts, amount, from, to, step)
    local taken = {}
    for at = from, to, step do
      local share = smaller(amount, parts[at].amount)
      amount = minus(amount, share)
      parts[at].amount = minus(parts[at].amount, share)
      add_part(taken, parts[at], share)
    end
    drop_empty_parts(parts)
    return taken
  end

  -- Adds the amounts of other parts.
  function lots.merge(parts, others)
    for _, part in ipairs(others) do add_part(parts, part, part.amount) end
    return parts
  end

  -- Takes the amounts of other parts out, as far as they are there.
  function lots.subtract(parts, others)
    for _, part in ipairs(others) do
      local there = record_of(parts, part)
      there.amount = excess(there.amount, part.amount)
    end
    drop_empty_parts(parts)
  end

  function lots.total(parts)
    local sum = ZERO
    for _, part in ipairs(parts) do sum = plus(sum, part.amount) end
    return sum
  end

  -- Takes up to an amount out, from the lots that are drawn first. What they do not have is that of
  -- payments, which are drawn last.
  function lots.split_first(parts, amount)
    return split(parts, amount, 1, #parts, 1)
  end

  -- Takes up to an amount out, from the lots that are drawn last: payments, which are the rest of
  -- `total`, and then these.
  function lots.split_last(parts, amount, total)
    local payments = excess(total, lots.total(parts))
    return split(parts, excess(amount, payments), #parts, 1, -1)
  end

  -- Takes all amounts of lots out that have expired.
  function lots.split_expired(parts, now)
    local expired = {}
    for _, part in ipairs(parts) do
      if part.expires <= now then add_part(expired, part, part.amount) end
    end
    lots.subtract(parts, expired)
    return expired
  end

  -- Reads the text of parts whose sum is at most `total`.
  function lots.parse(parts_text, total)
    local parts = {}
    for name, digits in string.gmatch(parts_text or '', '([^ ,]+) (%d+)') do
      add_part(parts, new_lot(name), to_amount(digits))
    end
    clamp(parts, 'amount', total)
    drop_empty_parts(parts)
    return parts
  end

  function lots.format(parts)
    local texts = {}
    for at, part in ipairs(parts) do texts[at] = part.name .. ' ' .. to_digits(part.amount) end
    return table.concat(texts, ',')
  end

  -- Returns a journal line that tells which named lots have paid, too. It is the last that a line
  -- tells.
  function lots.tell(line, parts)
    if #parts == 0 or string.sub(line, -1) ~= '}' then return line end
    return string.sub(line, 1, -2) .. ',"lots":"' .. lots.format(parts) .. '"}'
  end

  -- Lets what is available in lots past their time expire. Returns how much that was.
  function lots.expire()
    local now, total = now_ms(), ZERO
    for _, lot in ipairs(lots.list) do
      if lot.expires <= now and is_below(ZERO, lot.available) then
        table.insert(lots.lines, string.format('x%s 0 {"expired":"%s","at":%.0f}',
          to_digits(lot.available), lot.name, now))
        total = plus(total, lot.available)
        lot.available = ZERO
      end
    end
    lots.expired = plus(lots.expired, total)
    return total
  end

  -- Draws an amount that is available, the earliest expiry first. Returns its parts.
  function lots.draw(amount)
    local parts = {}
    for _, lot in ipairs(lots.list) do
      local share = smaller(amount, lot.available)
      amount = minus(amount, share)
      lot.available, lot.held = minus(lot.available, share), plus(lot.held, share)
      add_part(parts, lot, share)
    end
    return parts
  end

  -- Gives back what was drawn. What belongs to a lot that has expired expires now; returns how much
  -- that was.
  function lots.give_back(parts)
    for _, part in ipairs(parts) do
      local lot = record_of(lots.list, part)
      lot.held, lot.available = excess(lot.held, part.amount), plus(lot.available, part.amount)
    end
    return lots.expire()
  end

  -- Posts what was drawn.
  function lots.post(parts)
    for _, part in ipairs(parts) do
      local lot = record_of(lots.list, part)
      lot.held = excess(lot.held, part.amount)
    end
    return parts
  end

  -- Posts an amount that is available and that no hold covers. Returns its parts.
  function lots.pay(amount)
    return lots.post(lots.draw(amount))
  end

  -- Ends a hold of so much, whose parts a text names, with a charge. What the hold does not cover
  -- comes from what is available. Returns the parts that have paid.
  function lots.end_hold(parts_text, hold_digits, charge_digits)
    local in_hold, charge = to_amount(hold_digits), to_amount(charge_digits)
    local parts = lots.parse(parts_text, in_hold)
    local paid = lots.split_first(parts, charge)
    lots.give_back(parts)
    lots.post(paid)
    return lots.merge(paid, lots.pay(smaller(excess(charge, in_hold), lots.available)))
  end

  -- Whether all these lots are open, or may be opened. One place is kept for payments; a lot that
  -- has expired takes none, whatever is held of it.
  function lots.have_places(wanted)
    local now, known, open, new = now_ms(), {[LOT_OF_PAYMENTS] = true}, 0, 0
    for _, lot in ipairs(lots.list) do
      known[lot.name] = true
      if lot.expires > now then open = open + 1 end
    end
    for _, lot in ipairs(wanted) do
      if lot.expires > now and not known[lot.name] then new = new + 1 end
    end
    return new == 0 or open + new < LOTS_MAX
  end

  -- Makes an amount available in a lot.
  function lots.put(name, amount)
    if name == LOT_OF_PAYMENTS then return end
    local lot = record_of(lots.list, new_lot(name))
    lot.available = plus(lot.available, amount)
  end

  -- Returns what is held of lots that have expired: it does not come back.
  function lots.held_of_expired()
    local now, sum = now_ms(), ZERO
    for _, lot in ipairs(lots.list) do
      if lot.expires <= now then sum = plus(sum, lot.held) end
    end
    return sum
  end

  -- Writes the lots, and takes what has expired off the account. The lines of the journal are left
  -- to the script.
  function lots.save()
    local texts = {}
    close_lots()
    for at, lot in ipairs(lots.list) do
      texts[at] = lot.name .. ' ' .. to_digits(lot.available) .. ' ' .. to_digits(lot.held)
    end
    local new = table.concat(texts, ',')
    if new == '' then
      if text ~= '' then redis.call('HDEL', account, 'lots') end
    elseif new ~= text then
      redis.call('HSET', account, 'lots', new)
    end
    text = new
    local expired = to_digits(lots.expired)
    subtract(account, 'available', expired)
    subtract(account, 'credit', expired)
    lots.expired = ZERO
  end

  -- Writes the lots, and the lines of what has expired.
  function lots.write()
    if #lots.lines > 0 then note_hour(account) end
    lots.save()
    if #lots.lines > 0 then append_lines(account, lots.lines) end
    lots.lines = {}
  end

  for name, of_available, of_held in string.gmatch(text, '([^ ,]+) (%d+) (%d+)') do
    local lot = record_of(lots.list, new_lot(name))
    lot.available, lot.held = to_amount(of_available), to_amount(of_held)
  end
  clamp(lots.list, 'available', available)
  clamp(lots.list, 'held', held)
  close_lots()
  return lots
end

-- Opens the lots of an account that has some, or of any account if `is_needed`. Nil otherwise. What
-- has expired is taken away at once, so that no operation sees credit past its time; it stays so
-- if the operation is refused.
local function find_lots(account, is_needed)
  local known = redis.call('HMGET', account, 'lots', 'available', 'held')
  if not (known[2] and (known[1] or is_needed)) then return nil end
  local lots = open_lots(account, known[1] or '', to_amount(known[2]), to_amount(known[3]))
  local expired = lots.expire()
  if lots.is_clamped or is_below(ZERO, expired) then lots.write() end
  lots.available = excess(lots.available, expired)
  return lots
end
