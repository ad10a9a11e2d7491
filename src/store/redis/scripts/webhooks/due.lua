-- Notes when a row of an owner is due, and with it when the owner's next one is.
-- due: the times of the owners' next rows; of_owner: the times of the owner's rows; at: '' if
-- nothing is due with the row.
local function note_due(due, of_owner, owner, id, at)
  if at == '' then
    redis.call('ZREM', of_owner, id)
  else
    redis.call('ZADD', of_owner, at, id)
  end
  local next = redis.call('ZRANGE', of_owner, 0, 0, 'WITHSCORES')
  if next[1] then
    redis.call('ZADD', due, next[2], owner)
  else
    redis.call('ZREM', due, owner)
  end
end
