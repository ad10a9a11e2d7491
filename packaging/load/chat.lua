-- wrk: chats of several keys, each with another number in its text, all of the same length.
-- LOAD_KEYS is a file with a key on each line; LOAD_KIND is whole (default), stream or named, which
-- is whole with an Idempotency-Key of its own for each call. See docs/operate/load-tests.md.
local kind = os.getenv("LOAD_KIND") or "whole"
local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads * 1e9)
end

function init()
  keys, run = {}, os.time()
  for key in io.lines((assert(os.getenv("LOAD_KEYS"), "LOAD_KEYS names no file"))) do
    keys[#keys + 1] = key
  end
  body = '{"model":"lmb-5.5",' .. (kind == "stream" and '"stream":true,' or "")
    .. '"messages":[{"role":"user","content":"%012d How much is two and two?"}]}'
end

function request()
  number = number + 1
  local head = { ["content-type"] = "application/json" }
  head.authorization = "Bearer " .. keys[number % #keys + 1]
  if kind == "named" then head["idempotency-key"] = run .. "-" .. number end
  return wrk.format("POST", "/v1/chat/completions", head, body:format(number))
end

function done(summary, latency)
  local e = summary.errors
  io.write(("answers %d, no answer %d, not 2xx %d, p50 %.1f ms, p99 %.1f ms\n"):format(
    summary.requests, e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
