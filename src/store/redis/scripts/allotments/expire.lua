-- Ends an allotment whose lease has run out. Ends that are told later are posted late, once, from
-- what is available.
-- KEYS: see allotment.lua.
-- ARGV: the id of the allotment.
-- Reply: 'done'; or 'gone' if it has ended before, if its lease has not run out, or if the charges
--   do not fit. After 'done', the notes of update.lua.
local account = read_account()
local allotment = account and read_allotment(account)
if not account or not allotment or not is_out(allotment) then
  redis.call('ZREM', open_key, id)
  return {'gone'}
end
if allotment.lease_until > now then return {'gone'} end
end_allotment(account, allotment)
if is_out_of_range then return {'gone'} end
write_all(account, allotment)
return with_notes({'done'})
