-- Common functions of the scripts on the fleet: the gateways that serve now, and the questions that
-- they ask each other. Times in ms and numbers are doubles here.
local function text(number)
  return string.format('%.0f', number)
end

-- Adds a question, and returns its number. Numbers follow the clock, so that a store that lost its
-- last writes gives none of them again.
local function ask(questions, last, question, now)
  local number = math.max(tonumber(redis.call('GET', last) or '0') + 1, now * 1000)
  redis.call('SET', last, text(number))
  redis.call('ZADD', questions, text(number), text(number) .. ' ' .. question)
  return number
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
