-- Sets what an operator has set of an account.
-- KEYS: the account.
-- ARGV: the settings as JSON, or '' if nothing is set any more.
-- Reply: 'done' and the number of this change of the account's settings; or 'no_account'.
local account, settings = KEYS[1], ARGV[1]
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
if settings == '' then
  redis.call('HDEL', account, 'settings')
else
  redis.call('HSET', account, 'settings', settings)
end
redis.call('HINCRBY', account, 'settings_change', 1)
return {'done', redis.call('HGET', account, 'settings_change')}
