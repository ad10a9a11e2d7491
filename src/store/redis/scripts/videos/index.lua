-- Common part of the scripts on the index of video jobs.
-- KEYS: the sorted set of jobs by the time of their next check in unix ms, the version of the
--   record from which each entry was updated last, and the set of the jobs of each status. due.lua
--   gets only the first of these keys.
local due, versions = KEYS[1], KEYS[2]
local BY_STATUS = {queued = KEYS[3], in_progress = KEYS[4], completed = KEYS[5], failed = KEYS[6]}

local function text(number)
  return string.format('%.0f', number)
end
