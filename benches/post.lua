-- One request, again and again; run.py hands over its headers and body, and reads the last line.
local function read(variable)
  local file = assert(io.open(os.getenv(variable), "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

wrk.method = "POST"
wrk.body = read("BENCH_BODY_FILE") -- a large one would not fit into a variable
for name, value in read("BENCH_HEADERS_FILE"):gmatch("([^\n:]+): ([^\n]+)") do
  wrk.headers[name] = value
end

-- Exact numbers: wrk's own table rounds them to two digits.
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"bytes":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"bad":%d}\n',
    summary.requests, summary.bytes, summary.duration, latency:percentile(50),
    latency:percentile(99), e.status + e.connect + e.read + e.write + e.timeout))
end
