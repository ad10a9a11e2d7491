-- Requests for one account after the other, with another number in the text each time. All but the
-- number is written beforehand, so that one account costs the client what ten thousand do.
local befores, last, after = {}, tonumber(os.getenv("BENCH_FIRST")), nil
local number = tonumber(os.getenv("BENCH_NUMBER"))

init = function()
  local text = os.getenv("BENCH_REQUEST")
  local from, to = text:find(os.getenv("BENCH_PLACE"), 1, true)
  after = text:sub(to + 1)
  for key in io.lines(os.getenv("BENCH_KEYS")) do
    befores[#befores + 1] = text:sub(1, from - 1):gsub("@KEY@", key)
  end
end

request = function()
  last, number = last % #befores + 1, number + 1
  return befores[last] .. string.format("%016d", number) .. after
end

-- Exact numbers: wrk's own table rounds them to two digits.
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"bad":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status + e.connect + e.read + e.write + e.timeout))
end
