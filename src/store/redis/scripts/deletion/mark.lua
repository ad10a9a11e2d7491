-- Marks an account as deleted, if it has nothing left: credit, holds, or video jobs that are open.
-- What can come into it is refused from then on by the scripts that would put it there.
-- KEYS: the account; its open holds, its allotments that are out, its open video jobs.
-- ARGV: '1' to mark it, or '0' to tell only what would come of it.
-- Reply: 'deleted', the time in unix s and the number of this change of the account's settings;
--   'empty' if it could be marked; 'exists' and the same two if it was marked before; 'left', what
--   is available and held, and the numbers of open holds and jobs; or 'no_account'.
-- It comes after lots.lua.
local account, open, allotments, jobs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
find_lots(account)
local known = redis.call('HMGET', account, 'available', 'held', 'deleted_at', 'settings_change')
if not known[1] then return {'no_account'} end
if known[3] then return {'exists', known[3], known[4] or '0'} end
local holds = math.max(redis.call('ZCARD', open) - redis.call('SCARD', allotments), 0)
local open_jobs = redis.call('SCARD', jobs)
if known[1] ~= '0' or known[2] ~= '0' or holds > 0 or open_jobs > 0 then
  return {'left', known[1], known[2], string.format('%.0f', holds),
    string.format('%.0f', open_jobs)}
end
if ARGV[1] ~= '1' then return {'empty'} end
local at = string.format('%.0f', math.floor(now_ms() / 1000))
-- No version reads this as settings, so the keys of the account open nothing.
local settings = '{"suspended":true,"deleted_at":' .. at .. '}'
redis.call('HSET', account, 'deleted_at', at, 'settings', settings)
redis.call('HINCRBY', account, 'settings_change', 1)
-- What gateways remember of the account is no longer true.
redis.call('HINCRBY', account, 'revision', 1)
return {'deleted', at, redis.call('HGET', account, 'settings_change')}
