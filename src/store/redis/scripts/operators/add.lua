-- Adds an operator.
-- KEYS: the records of operators by name; the names by the digests of tokens.
-- ARGV: the name; the digest of the token; the record; how many operators there may be.
-- Reply: 'done', also if the same was added before; 'exists'; 'token_taken'; or 'too_many'.
local operators, tokens = KEYS[1], KEYS[2]
local name, token, record = ARGV[1], ARGV[2], ARGV[3]
local known = redis.call('HGET', operators, name)
if known == record then return {'done'} end
if known then return {'exists'} end
if is_taken(operators, tokens, token, name) then return {'token_taken'} end
if redis.call('HLEN', operators) >= tonumber(ARGV[4]) then return {'too_many'} end
-- The record is written last, because it makes the token valid.
redis.call('HSET', tokens, token, name)
redis.call('HSET', operators, name, record)
return {'done'}
