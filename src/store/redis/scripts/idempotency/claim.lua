-- Claims an idempotency key for a call.
-- KEYS: the record of the key.
-- ARGV: the digest of the call's content; the id of the call (its owner); the lease and the life of
--   the record, in ms; 'free', 'from' or 'anew'; with 'from' the owner from which the key may be
--   taken over, else ''. With 'anew' the key is claimed whichever call has it.
-- Reply: 'mine' if the key is claimed; 'other_content'; 'not_kept' with the owner, if the call of
--   the key has ended and its reply is not stored; 'replied' with the owner, the head and the
--   length of the stored reply; 'running'; or 'lapsed' with the owner, if the lease of the call has
--   expired.
local record = KEYS[1]
local content, owner, lease, life = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local mode, from = ARGV[5], ARGV[6]
local now = now_ms()
local known = redis.call('HMGET', record, 'owner', 'content', 'lease_until', 'ended', 'head',
  'bytes')
if known[1] and mode ~= 'anew' then
  if known[2] ~= content then return {'other_content'} end
  if known[4] and not known[5] then return {'not_kept', known[1]} end
  if known[4] then return {'replied', known[1], known[5], known[6]} end
  if known[1] ~= owner and known[1] ~= from then
    if tonumber(known[3]) > now then return {'running'} end
    return {'lapsed', known[1]}
  end
end
redis.call('DEL', record)
redis.call('HSET', record, 'owner', owner, 'content', content, 'lease_until', text(now + lease))
redis.call('PEXPIRE', record, text(life))
return {'mine'}
