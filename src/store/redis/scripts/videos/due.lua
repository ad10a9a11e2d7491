return redis.call('ZRANGEBYSCORE', due, '-inf', text(now_ms()), 'WITHSCORES', 'LIMIT', '0', ARGV[1])
