-- Deletes a claimed video job for good, with its body and its idempotency key.
-- KEYS: the job's record and body; the account's idempotency keys of jobs, list of jobs and open
--   jobs.
-- ARGV: the job's id, the revision of the claim, the time in ms after which the index checks its
--   entry again.
-- Reply: 'removed' and the index values; or 'gone' if the claim was lost.
local record, body, keys, list, open = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, revision, recheck_after_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not is_claim(record, revision) then return {'gone'} end
local key = redis.call('HGET', record, 'key')
if key ~= '' then redis.call('HDEL', keys, key) end
redis.call('ZREM', list, id)
redis.call('SREM', open, id)
local version = raise(record, 'version')
redis.call('DEL', record, body)
-- These values are for the index. It keeps the job's entry for a while, so that a late update does
-- not bring the job back there.
return {'removed', version, text(now_ms() + recheck_after_ms), 'removed'}
