-- Raises the version of the store's data. It is never lowered.
-- KEYS: the version.
-- ARGV: what it is to be at least.
-- Reply: 'done'.
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
return {'done'}
