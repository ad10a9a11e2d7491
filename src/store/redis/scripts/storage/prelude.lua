-- Common functions to count the bytes that an account keeps.
-- Each list is a sorted set of members "BYTES NAME", ordered by the time of their expiry in unix
-- ms. A key beside it, whose name ends with '-bytes', has the sum of their bytes. Bytes and times
-- are doubles here; amounts never are.
local LISTS = {'replies', 'notes', 'ids'}
-- At most this many expired members are removed from a list at a time; one script adds few.
local EXPIRED_BATCH = 100

local function whole(number)
  return string.format('%.0f', number)
end

-- Splits a member into its bytes and its name.
local function split(member)
  local space = string.find(member, ' ', 1, true)
  return string.sub(member, 1, space - 1), string.sub(member, space + 1)
end

-- Removes expired members from a list, and their bytes from its total. Returns how many were
-- removed.
local function remove_expired(list, total, now)
  if redis.call('EXISTS', list) == 0 then
    redis.call('DEL', total)
    return 0
  end
  local expired = redis.call('ZRANGEBYSCORE', list, '-inf', whole(now), 'LIMIT', 0, EXPIRED_BATCH)
  for _, member in ipairs(expired) do
    local bytes = split(member)
    redis.call('DECRBY', total, bytes)
    redis.call('ZREM', list, member)
  end
  return #expired
end

-- Adds a member to a list, and its bytes to the total.
local function add_member(list, total, bytes, name, now, life)
  redis.call('ZADD', list, whole(now + life), whole(bytes) .. ' ' .. name)
  redis.call('INCRBY', total, whole(bytes))
  if redis.call('PTTL', list) < life then redis.call('PEXPIRE', list, whole(life)) end
  -- The total expires after the list, so a list is never left without its total.
  redis.call('PEXPIRE', total, whole(redis.call('PTTL', list) + 1000))
end

-- Returns all bytes that an account keeps, as a string. `tag` is the prefix of the account's keys.
local function kept_bytes(tag)
  local all = tonumber(redis.call('GET', tag .. 'bodies-bytes') or '0')
  for _, list in ipairs(LISTS) do
    all = all + tonumber(redis.call('GET', tag .. list .. '-bytes') or '0')
  end
  return whole(all)
end
