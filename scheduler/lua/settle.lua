-- Put what an answer really used in place of what its claim charged, and learn from it.
-- KEYS  1 settled  2 attained service of the agent  3 that of the key  4 lengths of its kind  5 lengths of all  6 back
-- ARGV  1 used (ms)  2 charged (ms)  3 when (ms)  4 half-life of service (ms)  5 how long service is remembered (ms)
--       6 logarithm of its output tokens, '' when it did not finish  7 samples after which old ones fade
--       8 how long lengths are remembered (ms)  9 pair that is in a tool call now, or ''  10 longest hold (ms)
--       11 how long the mark is kept (ms)
-- Returns 1 when it was settled here, 0 when it had been already.
-- Invariant: repeating it changes nothing. The same as `policy.line.Service.settled` and `policy.lengths.Samples.learnt`.
if not redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[11]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function faded(ms, at)
  return ms * 2 ^ (-math.max(0, now - at) / tonumber(ARGV[4]))
end

local function settle(key)
  local r = redis.call('HMGET', key, 'ms', 'at_ms')
  local left = faded(tonumber(r[1] or 0), tonumber(r[2] or 0)) - faded(tonumber(ARGV[2]), tonumber(ARGV[3]))
  redis.call('HSET', key, 'ms', math.max(0, left + tonumber(ARGV[1])), 'at_ms', now)
  redis.call('PEXPIRE', key, ARGV[5])
end

local function learn(key)
  local r = redis.call('HMGET', key, 'n', 'mean', 'm2')
  local n, mean, m2, seen = tonumber(r[1] or 0), tonumber(r[2] or 0), tonumber(r[3] or 0), tonumber(ARGV[6])
  local fresh = n > 0 and math.min(1, (tonumber(ARGV[7]) - 1) / n) or 1
  n = n * fresh + 1
  local moved = mean + (seen - mean) / n
  redis.call('HSET', key, 'n', n, 'mean', moved, 'm2', m2 * fresh + (seen - mean) * (seen - moved))
  redis.call('PEXPIRE', key, ARGV[8])
end

settle(KEYS[2])
settle(KEYS[3])
if ARGV[6] ~= '' then
  learn(KEYS[4])
  learn(KEYS[5])
end
if ARGV[9] ~= '' then
  local most = tonumber(ARGV[10])
  local usual = redis.call('HGET', KEYS[2], 'gap_ms')
  local hold = usual and math.min(most, 2 * tonumber(usual)) or most
  redis.call('HSET', KEYS[2], 'left_ms', now)
  redis.call('ZADD', KEYS[6], now + hold, ARGV[9])
  redis.call('PEXPIRE', KEYS[6], math.max(1, math.ceil(most)))
end
return 1
