-- What an account keeps: lists by when it goes, whose members are "BYTES NAME", and sums beside
-- them. Bytes and times are doubles here; amounts never are.
local LISTS = {'replies', 'notes', 'ids'}
-- So many that are over are looked for, at most; one call adds few.
local LOOKS_MAX = 100

local function whole(number)
  return string.format('%.0f', number)
end

local function split(member)
  local space = string.find(member, ' ', 1, true)
  return string.sub(member, 1, space - 1), string.sub(member, space + 1)
end

-- Counts no more what is over; tells how much was found.
local function drop_over(list, total, now)
  if redis.call('EXISTS', list) == 0 then
    redis.call('DEL', total)
    return 0
  end
  local over = redis.call('ZRANGEBYSCORE', list, '-inf', whole(now), 'LIMIT', 0, LOOKS_MAX)
  for _, member in ipairs(over) do
    local bytes = split(member)
    redis.call('DECRBY', total, bytes)
    redis.call('ZREM', list, member)
  end
  return #over
end

local function count(list, total, bytes, name, now, life)
  redis.call('ZADD', list, whole(now + life), whole(bytes) .. ' ' .. name)
  redis.call('INCRBY', total, whole(bytes))
  if redis.call('PTTL', list) < life then redis.call('PEXPIRE', list, whole(life)) end
  -- The list of what is counted never outlives the count.
  redis.call('PEXPIRE', total, whole(redis.call('PTTL', list) + 1000))
end

local function kept_bytes(tag)
  local all = tonumber(redis.call('GET', tag .. 'bodies-bytes') or '0')
  for _, list in ipairs(LISTS) do
    all = all + tonumber(redis.call('GET', tag .. list .. '-bytes') or '0')
  end
  return whole(all)
end
