-- Removes a gateway that has written its attempts to the store.
-- KEYS: as for a poll.
-- ARGV: the member.
-- Reply: 'done'.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return {'done'}
