-- Replaces the token of an operator.
-- KEYS: the records of operators by name; the names by the digests of tokens.
-- ARGV: the name; the digest of the new token; its beginning; when it expires, in unix seconds, or
--   '-'.
-- Reply: 'done', 'unknown', 'last_owner' or 'token_taken'.
local operators, tokens = KEYS[1], KEYS[2]
local name, token, prefix, expires = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local known = redis.call('HGET', operators, name)
if not known then return {'unknown'} end
local old, role, created = string.match(known, '^(%x+) (%S+) %S+ (%-?%d+) ')
if not old then return redis.error_reply('ERR the record of the operator cannot be read') end
if is_taken(operators, tokens, token, name) then return {'token_taken'} end
if expires ~= '-' and is_last_owner(operators, name, known) then return {'last_owner'} end
-- The record makes the new token valid, and the old one useless.
redis.call('HSET', tokens, token, name)
redis.call('HSET', operators, name, table.concat({token, role, prefix, created, expires}, ' '))
if old ~= token then redis.call('HDEL', tokens, old) end
return {'done'}
