-- The slices of an allotment: what it may hold in windows of budgets, which counts as lent and held
-- there. They are changed in memory and written at the end, like all of an allotment. It comes
-- after windows.lua, and before allotment.lua, where KEYS and ARGV are told.
local tag, id, now = tag_of(KEYS[1]), ARGV[1], now_ms()
-- What an open allotment may hold in each window, by the window's text.
local slices_key = tag .. 'slices:' .. id

-- The texts of windows whose slices have changed.
local changed_slices = {}

-- Reads the slices of an allotment that has some.
local function read_slices()
  local slices, all = {}, redis.call('HGETALL', slices_key)
  for at = 1, #all, 2 do slices[all[at]] = to_amount(all[at + 1]) end
  return slices
end

local function set_slice(allotment, window, amount)
  allotment.slices[window.text] = is_below(ZERO, amount) and amount or nil
  changed_slices[window.text] = true
end

local function slice_of(allotment, window)
  return allotment.slices[window.text] or ZERO
end

-- Takes up to an amount out of a slice.
local function shrink_slice(allotment, window, amount)
  local slice = slice_of(allotment, window)
  local part = smaller(amount, slice)
  if not is_below(ZERO, part) then return end
  change_lent(window, part, ZERO)
  set_slice(allotment, window, minus(slice, part))
end

local function grow_slice(allotment, window, more)
  if not is_below(ZERO, more) then return end
  change_lent(window, ZERO, more)
  set_slice(allotment, window, plus(slice_of(allotment, window), more))
end

-- Gives all slices back to their windows.
local function release_slices(allotment)
  local texts = {}
  for text in pairs(allotment.slices) do table.insert(texts, text) end
  for _, window in ipairs(windows_of(tag, texts)) do
    shrink_slice(allotment, window, slice_of(allotment, window))
  end
end

-- Writes the slices that have changed.
local function write_slices(allotment)
  if next(changed_slices) == nil then return end
  for text in pairs(changed_slices) do
    local slice = allotment.slices[text]
    if slice then
      redis.call('HSET', slices_key, text, to_digits(slice))
    else
      redis.call('HDEL', slices_key, text)
    end
  end
  redis.call('HSET', KEYS[2], 'has_slices', next(allotment.slices) and '1' or '0')
end

-- Returns the windows that now run of some owners' budgets, and the slices with how long their
-- windows still run, as a text: 'WINDOW AMOUNT MS,WINDOW AMOUNT;WINDOW,WINDOW'.
local function format_slices(allotment, owners)
  local slices = {}
  for text, amount in pairs(allotment.slices) do
    local _, ends = parse_window(text)
    local rest = ends and string.format(' %.0f', ends - now) or ''
    table.insert(slices, text .. ' ' .. to_digits(amount) .. rest)
  end
  local current = window_texts_at(tag, owners, now)
  return table.concat(slices, ',') .. ';' .. table.concat(current, ',')
end
