-- Reads the entries of the index that are due, the longest due first. Changes nothing.
-- ARGV: the most entries.
-- Reply: pairs of a job and the time of its check.
return redis.call('ZRANGEBYSCORE', due, '-inf', text(now_ms()), 'WITHSCORES', 'LIMIT', '0', ARGV[1])
