-- One chat request, again and again; run.py hands over body and key, and reads the last line.
wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer " .. os.getenv("BENCH_KEY")
wrk.headers["vendor_a-version"] = "2023-06-01"

-- Exact numbers: wrk's own table rounds them to two digits.
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"bad":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status + e.connect + e.read + e.write + e.timeout))
end
