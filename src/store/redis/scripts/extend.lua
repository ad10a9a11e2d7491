-- Sets more money aside for an open hold, up to `wanted` in all, as far as it is available and as
-- the windows of the hold allow.
-- KEYS: the account, the hold.
-- ARGV: the id of the hold, the wanted amount.
-- Reply: 'held' and the amount now held; 'held_in_part' if it is less than wanted, and the rest is
--   lent and was called back; 'gone' if the hold is not open; 'out_of_range'; or 'no_account'.
-- It comes after lots.lua, windows.lua and recall.lua.
local account, hold = KEYS[1], KEYS[2]
local wanted = ARGV[2]
if not is_amount(wanted) then return redis.error_reply('ERR amount') end
local lots = find_lots(account)
local available = redis.call('HGET', account, 'available')
if not available then return {'no_account'} end
local known = redis.call('HMGET', hold, 'state', 'held', 'windows', 'lots')
if known[1] ~= 'open' then return {'gone'} end
if not less(known[2], wanted) then return {'held', known[2]} end
local more = difference(hold, wanted, known[2])
local room, counted = available, {}
if known[3] then
  counted = parse_windows(tag_of(account), known[3])
  room = to_digits(room_in(counted, to_amount(available)))
end
local is_short = less(room, more)
local may_grow = is_short and may_be_returned(counted, to_amount(more))
if is_short then more = room end
for _, window in ipairs(counted) do change_held(window, ZERO, to_amount(more)) end
if is_out_of_range then return {'out_of_range'} end
-- Lots are looked at before money is moved: a script that fails half-way keeps what it has written.
local parts = lots and lots.parse(known[4], to_amount(known[2]))
subtract(account, 'available', more)
add(account, 'held', more)
add(hold, 'held', more)
if lots then
  lots.merge(parts, lots.draw(to_amount(more)))
  if #parts > 0 then redis.call('HSET', hold, 'lots', lots.format(parts)) end
  lots.write()
end
if known[3] then write_windows(now_ms()) end
local held = redis.call('HGET', hold, 'held')
if may_grow and recall(account, '0', ZERO) then return {'held_in_part', held} end
return {'held', held}
