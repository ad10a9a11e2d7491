-- Sets what an operator has set of an account, if it is still what was read.
-- KEYS: the account.
-- ARGV: the settings as they were read, and the new ones: JSON, or '' if nothing is set.
-- Reply: 'done' and the number of this change of the account's settings, also if the new settings
-- are stored already; 'changed' if other ones are stored; or 'no_account', also if the account is
-- deleted.
local account, before, after = KEYS[1], ARGV[1], ARGV[2]
if redis.call('EXISTS', account) == 0 or is_deleted(account) then return {'no_account'} end
local stored = redis.call('HGET', account, 'settings') or ''
if stored ~= after then
  if stored ~= before then return {'changed'} end
  if after == '' then
    redis.call('HDEL', account, 'settings')
  else
    redis.call('HSET', account, 'settings', after)
  end
end
redis.call('HINCRBY', account, 'settings_change', 1)
return {'done', redis.call('HGET', account, 'settings_change')}
