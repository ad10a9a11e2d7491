-- Stores the statement of a month, unless there is one.
-- KEYS: the account; the statements of the account by month.
-- ARGV: the month; the digest of the statement; the statement.
-- Reply: 'stored' and the record, "SEALED_AT SHA256 BODY", of the first one; or 'no_account'.
local account, statements, month = KEYS[1], KEYS[2], ARGV[1]
if redis.call('EXISTS', account) == 0 then return {'no_account'} end
local sealed_at = string.format('%.0f', now_ms())
redis.call('HSETNX', statements, month, sealed_at .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
return {'stored', redis.call('HGET', statements, month)}
