-- The windows of budgets: which run, what is used of them, and what is left. It does what
-- src/ledger/prepaid/{window,refusal}.rs do, and comes after amounts.lua. Times are in unix ms, for
-- which doubles are exact.
--
-- The hash `budgets` has the limits by 'OWNER/KIND', such as 'account/day' or 'key:7/month'; 'none'
-- if the limit was removed, so that the windows only count. Each window is a hash of its own:
-- `window:OWNER/KIND/START` with what is `spent`, `held` and `lent`. A script reads a window once,
-- changes it in memory, and writes what has changed at its end.
local KINDS = {'hour', 'day', 'week', 'month', 'total'}
local HOUR_MS, DAY_MS = 3600000, 86400000
-- A window is forgotten so long after its end. No hold that may still be charged names it then.
local WINDOW_KEPT_MS = 2 * DAY_MS

-- The limits that were read, by 'OWNER/KIND': digits, 'none', or false if there is no budget.
local limits = {}
-- The windows that were read, by their texts, and those of them that have changed.
local windows, changed_windows = {}, {}

-- Returns the year and the month of a day, which is counted from the unix epoch. Years are counted
-- from March, so that the day of a leap year is the last one.
local function month_of_day(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = math.floor((day_of_era - math.floor(day_of_era / 1460)
    + math.floor(day_of_era / 36524) - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era
    - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local month = math.floor((5 * day_of_year + 2) / 153)
  month = month < 10 and month + 3 or month - 9
  return year_of_era + era * 400 + (month <= 2 and 1 or 0), month
end

-- Returns the first day of a month, counted from the unix epoch.
local function day_of_month(year, month)
  if month <= 2 then year = year - 1 end
  local era = math.floor(year / 400)
  local year_of_era = year - era * 400
  local day_of_year = math.floor((153 * ((month + 9) % 12) + 2) / 5)
  local day_of_era = year_of_era * 365 + math.floor(year_of_era / 4)
    - math.floor(year_of_era / 100) + day_of_year
  return era * 146097 + day_of_era - 719468
end

-- Returns when the window of a kind began that contains `now`.
local function start_of(kind, now)
  if kind == 'total' then return 0 end
  if kind == 'hour' then return now - now % HOUR_MS end
  local day = math.floor(now / DAY_MS)
  -- The unix epoch was a Thursday, three days after a Monday.
  if kind == 'week' then day = day - (day + 3) % 7 end
  if kind == 'month' then day = day_of_month(month_of_day(day)) end
  return day * DAY_MS
end

-- Returns when a window ends; nil if it never does.
local function end_of(kind, start)
  if kind == 'total' then return nil end
  if kind == 'hour' then return start + HOUR_MS end
  if kind == 'day' then return start + DAY_MS end
  if kind == 'week' then return start + 7 * DAY_MS end
  local year, month = month_of_day(math.floor(start / DAY_MS))
  if month == 12 then year, month = year + 1, 0 end
  return day_of_month(year, month + 1) * DAY_MS
end

-- Takes the text of a window apart: 'OWNER/KIND', and when it ends.
local function parse_window(text)
  local budget, kind, start = string.match(text, '^(.+/(%a+))/(%-?%d+)$')
  if not start then error({err = 'ERR window'}) end
  return budget, end_of(kind, tonumber(start))
end

-- Reads the limits of those of some budgets that are not known yet.
local function read_limits(tag, budgets)
  local new = {}
  for _, budget in ipairs(budgets) do
    if limits[budget] == nil then table.insert(new, budget) end
  end
  if #new == 0 then return end
  local known = redis.call('HMGET', tag .. 'budgets', unpack(new))
  for at, budget in ipairs(new) do limits[budget] = known[at] end
end

-- Returns the window of a text.
local function window_of(tag, text)
  if windows[text] then return windows[text] end
  local budget, ends = parse_window(text)
  read_limits(tag, {budget})
  local limit, key = limits[budget], tag .. 'window:' .. text
  local used = redis.call('HMGET', key, 'spent', 'held', 'lent')
  local window = {
    text = text, key = key, ends = ends, is_new = not used[1],
    limit = limit and limit ~= 'none' and to_amount(limit) or nil,
    spent = to_amount(used[1] or '0'),
    held = to_amount(used[2] or '0'),
    lent = to_amount(used[3] or '0'),
  }
  windows[text] = window
  return window
end

-- Returns the owners of the budgets in which a call counts. The key is '' if it has none.
local function owners_of(key)
  if key == '' then return {'account'} end
  return {'account', 'key:' .. key}
end

-- Returns the texts of the windows of some owners' budgets that contain `now`.
local function window_texts_at(tag, owners, now)
  local budgets, texts = {}, {}
  for _, owner in ipairs(owners) do
    for _, kind in ipairs(KINDS) do table.insert(budgets, owner .. '/' .. kind) end
  end
  read_limits(tag, budgets)
  for at, budget in ipairs(budgets) do
    if limits[budget] then
      local start = start_of(KINDS[(at - 1) % #KINDS + 1], now)
      table.insert(texts, string.format('%s/%.0f', budget, start))
    end
  end
  return texts
end

-- Returns the windows of some texts.
local function windows_of(tag, texts)
  local found = {}
  for at, text in ipairs(texts) do found[at] = window_of(tag, text) end
  return found
end

-- Returns the windows that one text names, with commas between them.
local function parse_windows(tag, text)
  local found = {}
  for one in string.gmatch(text, '[^,]+') do table.insert(found, window_of(tag, one)) end
  return found
end

-- Returns what is left below the limit of a window.
local function left_in(window)
  if not window.limit then return MAX_AMOUNT end
  return excess(excess(window.limit, window.spent), window.held)
end

-- Returns as much of an amount as each window has left.
local function room_in(counted, amount)
  for _, window in ipairs(counted) do amount = smaller(amount, left_in(window)) end
  return amount
end

-- Whether each window that has less than an amount left may get something back by a recall.
local function may_be_returned(counted, amount)
  for _, window in ipairs(counted) do
    if is_below(left_in(window), amount) and not is_below(ZERO, window.lent) then return false end
  end
  return true
end

-- Changes what is held in a window: it falls by `less`, and then grows by `more`. If the window is
-- forgotten, nothing falls.
local function change_held(window, less, more)
  window.held = plus(excess(window.held, less), more)
  if not window.has_changed then table.insert(changed_windows, window) end
  window.has_changed = true
end

-- Changes what is lent out of a window, and so what is held in it.
local function change_lent(window, less, more)
  change_held(window, less, more)
  window.lent = plus(excess(window.lent, less), more)
end

-- Counts a charge in a window. A window that ended long ago and was forgotten stays so. Returns how
-- far the window is above its limit.
local function spend_in(window, charge, now)
  if window.is_new and window.ends and window.ends + DAY_MS <= now then return ZERO end
  change_held(window, ZERO, ZERO)
  window.spent = plus(window.spent, charge)
  -- This sum has to be in range, too.
  local used = plus(window.spent, window.held)
  return window.limit and excess(used, window.limit) or ZERO
end

-- Returns a journal line that tells in which windows its charge counts. A line that is no object
-- stays as it is.
local function tell_windows(line, texts)
  if texts == '' or string.sub(line, -1) ~= '}' then return line end
  return string.sub(line, 1, -2) .. ',"windows":"' .. texts .. '"}'
end

-- Returns a journal line that tells how far its charge is above a limit, too: as far as the part
-- above its hold goes.
local function tell_over_budget(line, above_limit, above_hold)
  local over = smaller(above_limit, above_hold)
  if not is_below(ZERO, over) or string.sub(line, -1) ~= '}' then return line end
  return string.sub(line, 1, -2) .. ',"over_budget_nano":' .. to_digits(over) .. '}'
end

-- Releases what a hold has in its windows, and counts its charge there. `text` names the windows.
-- Returns how far one of them is above its limit.
local function end_in_windows(tag, text, held, charge, now)
  local above = ZERO
  for _, window in ipairs(parse_windows(tag, text)) do
    change_held(window, to_amount(held), ZERO)
    if charge ~= '0' then
      local excess_here = spend_in(window, to_amount(charge), now)
      if is_below(above, excess_here) then above = excess_here end
    end
  end
  return above
end

-- Writes the windows that have changed. What is used of a window expires some time after its end.
local function write_windows(now)
  for _, window in ipairs(changed_windows) do
    local expires_at = window.ends and window.ends + WINDOW_KEPT_MS
    local is_empty = window.is_new and not is_below(ZERO, plus(window.spent, window.held))
    if not is_empty and not (expires_at and expires_at <= now) then
      redis.call('HSET', window.key, 'spent', to_digits(window.spent),
        'held', to_digits(window.held), 'lent', to_digits(window.lent))
      if window.is_new and expires_at then
        redis.call('PEXPIREAT', window.key, string.format('%.0f', expires_at))
      end
    end
  end
end
