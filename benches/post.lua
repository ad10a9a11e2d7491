-- A request again and again, with another number in its text each time; run.py hands over all of
-- its bytes, and reads the last line.
local file = assert(io.open(os.getenv("BENCH_REQUEST_FILE"), "rb"))
local text = file:read("*a")
file:close()
local from, to = text:find(os.getenv("BENCH_PLACE"), 1, true)
local before, after = text:sub(1, from - 1), text:sub(to + 1)
local number = tonumber(os.getenv("BENCH_NUMBER"))

request = function()
  number = number + 1
  return before .. string.format("%016d", number) .. after
end

-- Exact numbers: wrk's own table rounds them to two digits.
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"bytes":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"bad":%d}\n',
    summary.requests, summary.bytes, summary.duration, latency:percentile(50),
    latency:percentile(99), e.status + e.connect + e.read + e.write + e.timeout))
end
