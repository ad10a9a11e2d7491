-- How long the store remembers a hold that was charged, and what it does about the end of a call
-- whose hold it may have forgotten. It comes after prelude.lua.

-- A hold that was charged while it was open is remembered for this time, in ms (two hours), because
-- nearly all repeats come within it. After that the line in the journal shows that the call was
-- charged. A hold that ended otherwise may have no line, so it is remembered for longer.
local CHARGED_HOLD_TTL_MS = 7200000
-- The store has forgotten no hold that is younger than this, in ms (20 minutes). The rest of the
-- two hours are what the clock of a gateway may be ahead.
local REMEMBERED_AGE_MS = 1200000

-- Returns when the hold of a call was made, in unix ms, as its id says: a UUID of version 7. For
-- any other id it returns nil.
local function begun_at(id)
  local high, low = string.match(id, '^(%x%x%x%x%x%x%x%x)%-(%x%x%x%x)%-7%x%x%x%-%x%x%x%x%-%x+$')
  if not high then return nil end
  return tonumber(high .. low, 16)
end

-- Returns the text by which the line of a call is found in the journal. It cannot be inside a text
-- of another line, where its quotes would be escaped.
local function line_mark(id)
  return '"request_id":"' .. id .. '"'
end

-- Whether a charge can be found by the id of its hold, so that the hold need not be remembered.
local function is_in_line(id, line)
  return begun_at(id) ~= nil and string.find(line, line_mark(id), 1, true) ~= nil
end

-- Returns the line at which a search ends: no charge of the last day whose hold may be forgotten is
-- before it. Returns nil if there is no such charge at all. Charges of allotments do not move
-- `journal_floor`, so it may be old: each charge whose hold is forgotten comes within a day after
-- `journal_marked_at`.
local function search_floor(account)
  local known = redis.call('HMGET', account, 'journal_floor', 'journal_mark', 'journal_marked_at')
  if not known[1] then return nil end
  local age = now_ms() - tonumber(known[3])
  if age >= 2 * ENDED_HOLD_TTL_MS then return nil end
  return tonumber(age >= ENDED_HOLD_TTL_MS and known[2] or known[1])
end

-- Whether lines have left the journal among which a search would have to look: one of them was
-- posted within the last day, as far as the hour of the last one tells.
local function lacks_late_lines(account)
  local hour = tonumber(redis.call('HGET', account, 'journal_base_hour') or '0')
  return now_ms() < hour + 3600000 + ENDED_HOLD_TTL_MS
end

-- Whether an unknown hold may be one that was charged and is forgotten.
local function may_be_forgotten(account, id)
  local begun = begun_at(id)
  if not begun or math.abs(now_ms() - begun) < REMEMBERED_AGE_MS then return false end
  return search_floor(account) ~= nil
end

-- Remembers a charge that was found in the journal, so that a repeat need not wait for another
-- search.
local function remember_charge(hold, charge)
  redis.call('HSET', hold, 'state', 'posted', 'held', '0', 'posted', charge)
  redis.call('PEXPIRE', hold, CHARGED_HOLD_TTL_MS)
  return {'already_posted', charge}
end

-- Notes how long the journal is, once a day, before a charge is added whose hold will be forgotten.
-- So no such charge of the last day is before the line `journal_floor`, and a search ends there.
-- `marked_at` and `mark` are what was noted last.
local function mark_journal(account, journal, marked_at, mark)
  local now = now_ms()
  local age = now - tonumber(marked_at or '0')
  if age >= ENDED_HOLD_TTL_MS then
    local length = journal_length(account, journal)
    redis.call('HSET', account, 'journal_floor', mark or length, 'journal_mark', length,
      'journal_marked_at', string.format('%.0f', now))
  elseif age < 0 then
    -- The clock was set back. The day begins anew, so that the floor does not rise too early.
    redis.call('HSET', account, 'journal_marked_at', string.format('%.0f', now))
  end
end
