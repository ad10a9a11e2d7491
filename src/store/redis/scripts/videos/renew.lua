-- Renews the lease of a claim on a video job.
-- KEYS: the job's record.
-- ARGV: the revision of the claim, the lease in ms.
-- Reply: 'renewed' and the index values; or 'gone' if the claim was lost.
local record, revision, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not is_claim(record, revision) then return {'gone'} end
redis.call('HSET', record, 'until', text(now_ms() + lease))
raise(record, 'version')
return record_reply('renewed', record)
