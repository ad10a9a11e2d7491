-- The same request again and again, for one account after the other. All are written beforehand,
-- so that one account costs the client what ten thousand do.
local requests, last = {}, tonumber(os.getenv("BENCH_FIRST"))

init = function()
  wrk.headers["content-type"] = "application/json"
  for key in io.lines(os.getenv("BENCH_KEYS")) do
    wrk.headers["authorization"] = "Bearer " .. key
    requests[#requests + 1] = wrk.format("POST", nil, nil, os.getenv("BENCH_BODY"))
  end
end

request = function()
  last = last % #requests + 1
  return requests[last]
end

-- Exact numbers: wrk's own table rounds them to two digits.
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"bad":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status + e.connect + e.read + e.write + e.timeout))
end
