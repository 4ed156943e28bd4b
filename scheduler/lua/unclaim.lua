-- Put a job back into its line that this incarnation claimed and no thread of it holds.
-- KEYS  1 job  2 stream  3 line  4 running
-- ARGV  1 job id  2 incarnation  3 level weight  4 what a record lives on after its wait limit (ms)
--       5 prefix of the keys of attained service  6 half-life of service (ms)
-- Returns 1 when it waits again, at its old place; 0 when it is not ours, has ended, or was begun.
-- Invariant: only a job of which nothing was written is answered again. One that was begun is marked as no living
-- incarnation's, so that `recovery` gives it another attempt. What the claim charged is taken back, as far as it has not
-- faded. The keys of service are made from names in the record, so they cannot be passed in KEYS.
if redis.call('HGET', KEYS[4], ARGV[1]) ~= ARGV[2] then return 0 end
local r = redis.call('HMGET', KEYS[1], 'state', 'level', 'arrival', 'deadline_ms', 'key', 'agent', 'expected_ms',
  'claimed_ms')
if r[1] == 'running' and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HSET', KEYS[4], ARGV[1], 'nobody')
  return 0
end
redis.call('HDEL', KEYS[4], ARGV[1])
if r[1] ~= 'running' then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = tonumber(r[4]) - now

local function refund(whom)
  local key = ARGV[5] .. whom
  local had = redis.call('HMGET', key, 'ms', 'at_ms')
  if not had[1] then return end
  local charged = tonumber(r[7] or 0) * 2 ^ (-math.max(0, tonumber(had[2]) - tonumber(r[8])) / tonumber(ARGV[6]))
  redis.call('HSET', key, 'ms', math.max(0, tonumber(had[1]) - charged))
end

refund('key:' .. (r[5] or ''))
refund('agent:' .. (r[5] or '') .. ':' .. r[6])
redis.call('HSET', KEYS[1], 'state', 'queued')
redis.call('HDEL', KEYS[1], 'claim', 'claimed_ms')
redis.call('PEXPIRE', KEYS[1], math.max(left, 0) + tonumber(ARGV[4]))
redis.call('ZADD', KEYS[3], tonumber(r[2]) * tonumber(ARGV[3]) + tonumber(r[3]), ARGV[1])
return 1
