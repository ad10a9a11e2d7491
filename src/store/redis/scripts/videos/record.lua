-- Common functions of the scripts on the records of video jobs.
-- Times, in ms and in µs, are doubles here; amounts never are.
local function text(number)
  return string.format('%.0f', number)
end

-- Raises a number of a record that only grows, and returns it. It follows the clock in µs, so that
-- a server that has lost its last writes and continues from an older state never gives out the same
-- number for something else.
local function raise(record, field)
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local raised = math.max(tonumber(redis.call('HGET', record, field) or '0') + 1, now)
  redis.call('HSET', record, field, text(raised))
  return text(raised)
end

-- Returns a reply: the result, then the index values (the record's version, the time of the job's
-- next check in unix ms, the job's status), then further values. The version shows which of two
-- replies is newer.
local function record_reply(result, record, ...)
  local known = redis.call('HMGET', record, 'version', 'due', 'until', 'status')
  local check_at = math.max(tonumber(known[2]), tonumber(known[3]))
  return {result, known[1], text(check_at), known[4], ...}
end

-- Whether a claim is still valid: the job was not claimed again since, and the claim was not given
-- back.
local function is_claim(record, revision)
  local known = redis.call('HMGET', record, 'revision', 'until')
  return known[1] == revision and known[2] ~= '0'
end

-- Whether a job with this status is queued or in progress.
local function is_open(status)
  return status == 'queued' or status == 'in_progress'
end
