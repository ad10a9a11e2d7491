-- Common functions of the scripts on the fleet: the gateways that serve now, and the questions that
-- they ask each other. Times in ms and numbers are doubles here.
local function text(number)
  return string.format('%.0f', number)
end

-- Removes the members that have not polled for a lease. They ended without saying so, which the
-- others have to know for as long as a first attempt is remembered.
local function remove_silent(members, seen, lost, now, lease, lost_life)
  local silent = redis.call('ZRANGEBYSCORE', members, '-inf', text(now - lease), 'LIMIT', 0, 64)
  for _, member in ipairs(silent) do
    redis.call('ZREM', members, member)
    redis.call('HDEL', seen, member)
    redis.call('SET', lost, '1', 'PX', text(lost_life))
  end
end
