-- The index: when to look at a job next, the version of what says so, and the jobs of each status.
local due, versions = KEYS[1], KEYS[2]
local BY_STATUS = {queued = KEYS[3], in_progress = KEYS[4], completed = KEYS[5], failed = KEYS[6]}

local function text(number)
  return string.format('%.0f', number)
end
