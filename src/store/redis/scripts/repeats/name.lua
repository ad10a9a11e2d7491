-- Times and lengths, in ms and in bytes, are doubles here; amounts never are.
local function text(number)
  return string.format('%.0f', number)
end

-- Whether a call runs under the name, and is this one's.
local function is_running(record, owner)
  local known = redis.call('HMGET', record, 'owner', 'ended')
  return known[1] == owner and not known[2]
end
