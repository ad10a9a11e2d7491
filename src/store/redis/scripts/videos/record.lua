-- Times, in ms and in µs, are doubles here; amounts never are.
local function text(number)
  return string.format('%.0f', number)
end

-- Raises a number that only grows. It follows the clock, so that a server that lost its last writes
-- and goes on from an older state never gives out the same number for something else.
local function raise(record, field)
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local raised = math.max(tonumber(redis.call('HGET', record, field) or '0') + 1, now)
  redis.call('HSET', record, field, text(raised))
  return text(raised)
end

-- A reply: the word, and what the index must know. The version says which of two replies is newer.
local function told(word, record, ...)
  local known = redis.call('HMGET', record, 'version', 'due', 'until', 'status')
  local look = math.max(tonumber(known[2]), tonumber(known[3]))
  return {word, known[1], text(look), known[4], ...}
end

-- Whether a claim still is one: nobody has claimed the job since, nor was it given back.
local function is_claim(record, revision)
  local known = redis.call('HMGET', record, 'revision', 'until')
  return known[1] == revision and known[2] ~= '0'
end

local function is_open(status)
  return status == 'queued' or status == 'in_progress'
end
