-- One request again and again, given by the environment, and the result as one line of JSON.
wrk.method = "POST"
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = os.getenv("BENCH_TYPE")
if os.getenv("BENCH_HEADER_LENGTH") ~= "" then
  wrk.headers["Inference-Header-Content-Length"] = os.getenv("BENCH_HEADER_LENGTH")
end

function done(summary, latency)
  local bad = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status
    + summary.errors.timeout
  print(string.format('BENCH {"requests": %d, "seconds": %.6f, "bad": %d, "p50_us": %d, "p90_us": %d, "p99_us": %d}',
    summary.requests, summary.duration / 1e6, bad, latency:percentile(50), latency:percentile(90),
    latency:percentile(99)))
end
