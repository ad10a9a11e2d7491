-- Common functions of the scripts on operators.
-- The record of an operator is a text, "TOKEN ROLE PREFIX CREATED EXPIRES": the digest of the token
-- in hexadecimal, the role, the beginning of the token, and two times in unix seconds. EXPIRES is
-- '-' if the token does not expire. Times in ms and numbers of lines are doubles here.
local function text(number)
  return string.format('%.0f', number)
end

local function is_lasting_owner(record)
  return string.find(record, '^%x+ owner %S+ %-?%d+ %-$') ~= nil
end

-- Whether an operator is the only owner whose token does not expire.
local function is_last_owner(operators, name, record)
  if not is_lasting_owner(record) then return false end
  local all = redis.call('HGETALL', operators)
  for index = 1, #all, 2 do
    if all[index] ~= name and is_lasting_owner(all[index + 1]) then return false end
  end
  return true
end

-- Whether another operator has a token. The index of tokens may have one that no record has: a
-- script that fails half-way keeps what it has written.
local function is_taken(operators, tokens, token, name)
  local holder = redis.call('HGET', tokens, token)
  if not holder or holder == name then return false end
  local record = redis.call('HGET', operators, holder)
  return record and string.sub(record, 1, #token + 1) == token .. ' '
end
