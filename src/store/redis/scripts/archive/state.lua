-- Tells how far a journal is archived, and how far it has left the server. Changes nothing. It is a
-- script, since a server whose memory is full refuses any transaction of commands.
-- KEYS: the account, the journal, the archived days, the state of the sums.
-- Reply: the number of the last line, that of the last line in the sums, and that of the last line
--   that is no longer there; and the last archived day if there is one. Nothing if there is no such
--   account.
local account, journal, days, state = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if redis.call('EXISTS', account) == 0 then return {} end
local lines = string.format('%.0f', journal_length(account, journal))
local base = string.format('%.0f', journal_base(account))
local newest = redis.call('ZREVRANGE', days, 0, 0)[1]
return {lines, redis.call('HGET', state, 'seq') or '0', base, newest}
