-- Puts an account into the index of suspended accounts, or takes it out. Changes of its settings
-- may come here in another order than they were made; the last one made counts.
-- KEYS: the index, a hash of the numbers of changes by the names of accounts.
-- ARGV: the account; the number of the change of its settings; '1' if the account is suspended by
-- it, else '0'.
-- Reply: 'done'; or 'later' if a later change has put the account there.
local index, account, change, is_suspended = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local known = redis.call('HGET', index, account)
if known and less(change, known) then return {'later'} end
if is_suspended == '1' then
  redis.call('HSET', index, account, change)
else
  redis.call('HDEL', index, account)
end
return {'done'}
