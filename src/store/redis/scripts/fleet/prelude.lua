-- Common functions of the scripts on the fleet: the gateways that serve now, and the questions that
-- they ask each other. Times in ms and numbers are doubles here.
local function text(number)
  return string.format('%.0f', number)
end

-- Removes the members that have not polled for a lease. They ended without saying so, which the
-- others have to know for as long as a first attempt is remembered. Nothing is removed unless the
-- caller has polled all that time, and lately: else it may be the store that was away. `polled` is
-- when the caller polled last, if it did.
local function remove_silent(members, seen, lost, now, lease, lost_life, is_steady, polled)
  if is_steady ~= '1' or not polled or now - tonumber(polled) > lease / 2 then return end
  local silent = redis.call('ZRANGEBYSCORE', members, '-inf', text(now - lease), 'LIMIT', 0, 64)
  for _, member in ipairs(silent) do
    redis.call('ZREM', members, member)
    redis.call('HDEL', seen, member)
    redis.call('SET', lost, '1', 'PX', text(lost_life))
  end
end
