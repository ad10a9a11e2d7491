-- Places a hold: sets aside as much of `wanted` as is available and as each window has left, but
-- not less than `least`. Nothing changes if the hold exists already. `key` is the id of the call's
-- API key, or ''; `asked` is the text of what the call takes of rate limits, or ''.
-- Reply: 'held' and the amount, then what each rate limit has left, with a '!' if the call is above
--   it; 'rate_limited', the limit, when to try again in ms from now or '', then what each limit has
--   left; 'hold_exists', its amount and its state; 'insufficient' and what is available;
--   'budget_exceeded', the window and what its limit leaves once nothing is held; 'budget_in_use'
--   and what can be held now; 'conflict' if the hold exists with other amounts; 'tombstoned' if it
--   was voided before; 'wait' if the money or the budget is lent, and was called back;
--   'out_of_range'; 'deleted' if the account is; or 'no_account'.
-- It comes after lots.lua, windows.lua, recall.lua and places.lua.

-- Returns the window whose limit does not allow `least` even if nothing is held; nil if there is
-- none. Of several it is the last one to end: before that the call cannot be made.
local function find_exceeded(counted, least)
  local found = nil
  for _, window in ipairs(counted) do
    if window.limit and is_below(excess(window.limit, window.spent), least) then
      if not found or not window.ends or (found.ends and found.ends <= window.ends) then
        found = window
      end
    end
  end
  return found
end

-- Returns the reply to a hold of which less than `least` can be held.
local function refuse(account, lots, available, least, counted, room)
  local needed, lost = to_amount(least), lots and lots.held_of_expired() or ZERO
  if #counted > 0 then
    local all = plus(to_amount(available), to_amount(redis.call('HGET', account, 'held')))
    if is_below(excess(all, lost), needed) then return {'insufficient', available} end
    local window = find_exceeded(counted, needed)
    if window then
      return {'budget_exceeded', window.text, to_digits(excess(window.limit, window.spent))}
    end
  end
  if may_be_returned(counted, needed) and recall(account, least, lost) then return {'wait'} end
  if less(available, least) then return {'insufficient', available} end
  return {'budget_in_use', room}
end

local function set_aside(account, hold, open, id, key, wanted, least, lease, asked)
  if not (is_amount(wanted) and is_amount(least)) then return redis.error_reply('ERR amount') end
  local lots = find_lots(account)
  local balance = redis.call('HMGET', account, 'available', 'has_budgets', 'deleted_at')
  local available = balance[1]
  if not available then return {'no_account'} end
  local known = redis.call('HMGET', hold, 'state', 'wanted', 'least', 'held')
  if known[1] then
    if known[1] == 'tombstone' then return {'tombstoned'} end
    if known[2] ~= wanted or known[3] ~= least then return {'conflict'} end
    return {'hold_exists', known[4], known[1]}
  end
  if balance[3] then return {'deleted'} end
  local now, tag = now_ms(), tag_of(account)
  local rates, asks, readings = nil, {}, {}
  if asked ~= '' then
    rates = open_rates(tag, now)
    asks = rates.parse_asks(asked)
    local refusal = check_rates(rates, tag, open, asks, now)
    if refusal then return refusal end
  end
  local texts, counted, room = {}, {}, available
  if balance[2] then
    texts = window_texts_at(tag, owners_of(key), now)
    counted = windows_of(tag, texts)
    room = to_digits(room_in(counted, to_amount(available)))
  end
  if less(room, least) then return refuse(account, lots, available, least, counted, room) end
  local held = wanted
  if less(room, wanted) then held = room end
  for _, window in ipairs(counted) do change_held(window, ZERO, to_amount(held)) end
  if is_out_of_range then return {'out_of_range'} end
  local lease_until = string.format('%.0f', now + lease)
  subtract(account, 'available', held)
  add(account, 'held', held)
  local record = {'state', 'open', 'wanted', wanted, 'least', least, 'held', held,
    'lease_until', lease_until}
  if #texts > 0 then
    table.insert(record, 'windows')
    table.insert(record, table.concat(texts, ','))
  end
  if lots then
    local drawn = lots.format(lots.draw(to_amount(held)))
    if drawn ~= '' then
      table.insert(record, 'lots')
      table.insert(record, drawn)
    end
    lots.write()
  end
  if rates then
    local taken
    readings, taken = rates.take(asks)
    if taken ~= '' then
      table.insert(record, 'rates')
      table.insert(record, taken)
    end
    rates.write()
  end
  redis.call('HSET', hold, unpack(record))
  redis.call('ZADD', open, lease_until, id)
  write_windows(now)
  return {'held', held, unpack(readings)}
end
