-- Sets more money aside for an open hold, up to `wanted` in all, as far as it is available.
-- KEYS: the account, the hold.
-- ARGV: the id of the hold, the wanted amount.
-- Reply: 'held' and the amount now held; 'held_in_part' if it is less than wanted, and the rest is
--   lent and was called back; 'gone' if the hold is not open; or 'no_account'.
local account, hold = KEYS[1], KEYS[2]
local wanted = ARGV[2]
if not is_amount(wanted) then return redis.error_reply('ERR amount') end
local available = redis.call('HGET', account, 'available')
if not available then return {'no_account'} end
local known = redis.call('HMGET', hold, 'state', 'held')
if known[1] ~= 'open' then return {'gone'} end
if not less(known[2], wanted) then return {'held', known[2]} end
local more = difference(hold, wanted, known[2])
local is_short = less(available, more)
if is_short then more = available end
subtract(account, 'available', more)
add(account, 'held', more)
add(hold, 'held', more)
local held = redis.call('HGET', hold, 'held')
if is_short and recall(account, '0') then return {'held_in_part', held} end
return {'held', held}
