-- Gives back a part of the charge of a request, once, by a line of its own in the journal. It is
-- the operation `correct_charge` of src/ledger/prepaid/correct.rs.
-- KEYS: the account, its payments, its transfers, its corrected requests, the journal,
--   the times of its transfers.
-- ARGV: the id of the correction, the request, the amount, why, the beginning of the journal line;
--   then the numbers of the request's lines in the journal. Other lines are passed over, and those
--   that have left the journal.
-- Reply: 'corrected' and the amount that was given back; 'conflict' if the id was used for
--   something else; 'unknown_charge' if no line is a charge of the request; 'too_many_lots' if it
--   was paid from a lot that is closed and has no place; 'out_of_range'; 'deleted' if the account
--   is; or 'no_account'.
-- It comes after lots.lua, windows.lua, forgotten.lua and transfers.lua.
local account, payments, transfers = KEYS[1], KEYS[2], KEYS[3]
local corrected, journal = KEYS[4], KEYS[5]
local tx, request, amount, reason, head = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local FIRST_LINE = 6

-- Adds up the charges of the request, and the lots that have paid them. Returns nil if there is
-- none.
local function read_charges(lots)
  local wanted = line_mark(request)
  local charged, seen = nil, {}
  local base, lines = journal_base(account), journal_length(account, journal)
  for at = FIRST_LINE, #ARGV do
    local number = tonumber(ARGV[at])
    local is_known = number > base and number <= lines and not seen[number]
    local entry = is_known and redis.call('LINDEX', journal, number - base - 1)
    seen[number] = true
    local posted, lost, line = string.match(entry or '', '^(%d+) (%d+) (.*)$')
    if posted and string.find(line, wanted, 1, true) then
      charged = charged or {amount = ZERO, written_off = ZERO, parts = {}, windows = {}}
      charged.amount = plus(charged.amount, to_amount(posted))
      charged.written_off = plus(charged.written_off, to_amount(lost))
      local paid = excess(to_amount(posted), to_amount(lost))
      lots.merge(charged.parts, lots.parse(string.match(line, ',"lots":"([^"]*)"}$'), paid))
      charged.key = string.match(line, '"key_id":(%d+)')
      local texts = string.match(line, '"windows":"([^"]*)"') or ''
      for text in string.gmatch(texts, '[^,]+') do charged.windows[text] = true end
    end
  end
  return charged
end

-- Returns the journal line of the correction.
local function format_line(lots, key, texts, parts, now)
  local line = head .. ',"at":' .. string.format('%.0f', now)
  if key then line = line .. ',"key_id":' .. key end
  if #texts > 0 then line = line .. ',"windows":"' .. table.concat(texts, ',') .. '"' end
  return lots.tell(line .. '}', parts)
end

-- Gives back what was spent in a window that still runs.
local function unspend(window, given, now)
  if window.is_new or (window.ends and window.ends <= now) then return end
  change_held(window, ZERO, ZERO)
  window.spent = excess(window.spent, given)
end

if not is_amount(amount) then return redis.error_reply('ERR amount') end
local lots = find_lots(account, true)
if not lots then return {'no_account'} end
local known = find_transfer(payments, transfers, tx)
if known then
  local is_same = known.kind == 'correction' and known.amount == amount
  if is_same and known.request == request then return {'corrected', known.moved} end
  return {'conflict'}
end
if is_deleted(account) then return {'deleted'} end
local charged = read_charges(lots)
if not charged then return {'unknown_charge'} end
local before = redis.call('HGET', corrected, request) or '0 0'
local given_before, lost_before, parts_before = string.match(before, '^(%d+) (%d+) ?(.*)$')
given_before, lost_before = to_amount(given_before), to_amount(lost_before)
-- A search may have found fewer lines than the corrections before it.
local left = excess(charged.amount, given_before)
local given = smaller(to_amount(amount), left)
local lost = smaller(given, excess(charged.written_off, lost_before))
local back = minus(given, lost)
-- The lots that paid get it back, those that are drawn last first.
local paid_before = excess(given_before, lost_before)
parts_before = lots.parse(parts_before, paid_before)
local paid = excess(charged.amount, charged.written_off)
local payments = excess(excess(paid, lots.total(charged.parts)),
  excess(paid_before, lots.total(parts_before)))
lots.subtract(charged.parts, parts_before)
local parts = lots.split_last(charged.parts, back, plus(payments, lots.total(charged.parts)))
if not lots.have_places(parts) then return {'too_many_lots'} end
for _, part in ipairs(parts) do lots.put(part.name, part.amount) end
plus(lots.available, back)
if is_out_of_range then return {'out_of_range'} end
local now, tag, texts = now_ms(), tag_of(account), {}
for text in pairs(charged.windows) do table.insert(texts, text) end
table.sort(texts)
for _, text in ipairs(texts) do unspend(window_of(tag, text), given, now) end
note_hour(account)
write_windows(now)
local digits, lost_digits = to_digits(given), to_digits(lost)
subtract(account, 'posted', digits)
subtract(account, 'written_off', lost_digits)
add(account, 'available', to_digits(back))
local given_now = to_digits(plus(given_before, given)) .. ' ' .. to_digits(plus(lost_before, lost))
lots.merge(parts_before, parts)
if #parts_before > 0 then given_now = given_now .. ' ' .. lots.format(parts_before) end
redis.call('HSET', corrected, request, given_now)
local line = format_line(lots, charged.key, texts, parts, now)
append_lines(account, {'-' .. digits .. ' -' .. lost_digits .. ' ' .. line})
-- What belongs to a lot that has expired expires now.
lots.expire()
lots.write()
write_transfer(transfers, tx, 'correction', amount, now,
  {request = request, reason = reason, moved = digits})
return {'corrected', digits}
