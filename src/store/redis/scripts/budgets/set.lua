-- Sets or removes the limit of a budget. What was spent stays spent.
-- KEYS: the account, its budgets.
-- ARGV: the budget, 'OWNER/KIND'; the limit, or 'none'.
-- Reply: 'done'; 'exists' if it was so before; or 'no_account', also if the account is deleted.
local account, budgets = KEYS[1], KEYS[2]
local budget, limit = ARGV[1], ARGV[2]
if limit ~= 'none' and not is_amount(limit) then return redis.error_reply('ERR amount') end
if redis.call('EXISTS', account) == 0 or is_deleted(account) then return {'no_account'} end
if redis.call('HGET', budgets, budget) == limit then return {'exists'} end
redis.call('HSET', budgets, budget, limit)
redis.call('HSET', account, 'has_budgets', '1')
-- What gateways remember of the account is no longer true.
redis.call('HINCRBY', account, 'revision', 1)
return {'done'}
