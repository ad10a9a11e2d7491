-- Before a job is made due sooner: it will be looked at, if not sooner still.
local member, look_ms, late_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local look, known = now + look_ms, redis.call('ZSCORE', due, member)
if known then look = math.min(look, tonumber(known)) end
redis.call('ZADD', due, text(look), member)
return {text(now + late_ms), ''}
