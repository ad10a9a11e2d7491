-- Before a job is placed: it will be looked at, whatever comes of that.
local member, look_ms, late_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local look, known = now + look_ms, redis.call('ZSCORE', due, member)
-- Never the same time twice: whoever announced it first must not take it back now, nor whoever
-- looks at it now drop it.
if known and tonumber(known) >= look then look = tonumber(known) + 1 end
if look > now + 2 * look_ms then look = now + look_ms end
redis.call('ZADD', due, text(look), member)
return {text(now + late_ms), known and '' or text(look)}
