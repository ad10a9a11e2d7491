-- Common functions of the scripts on idempotency keys.
-- Times in ms and lengths in bytes are doubles here; amounts never are.
local function text(number)
  return string.format('%.0f', number)
end

-- Whether the call `owner` has the idempotency key and has not ended.
local function is_running(record, owner)
  local known = redis.call('HMGET', record, 'owner', 'ended')
  return known[1] == owner and not known[2]
end
