-- Put a job back into its line that this incarnation claimed and no thread of it holds.
-- KEYS  1 job  2 stream  3 line  4 running
-- ARGV  1 job id  2 incarnation  3 level weight  4 what a record lives on after its wait limit (ms)
-- Returns 1 when it waits again, at its old place; 0 when it is not ours, has ended, or was begun.
-- Invariant: only a job of which nothing was written is answered again. One that was begun is marked as no living
-- incarnation's, so that `recovery` ends it.
if redis.call('HGET', KEYS[4], ARGV[1]) ~= ARGV[2] then return 0 end
local r = redis.call('HMGET', KEYS[1], 'state', 'level', 'arrival', 'deadline_ms')
if r[1] == 'running' and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HSET', KEYS[4], ARGV[1], 'nobody')
  return 0
end
redis.call('HDEL', KEYS[4], ARGV[1])
if r[1] ~= 'running' then return 0 end
local time = redis.call('TIME')
local left = tonumber(r[4]) - time[1] * 1000 - math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'state', 'queued')
redis.call('HDEL', KEYS[1], 'claim')
redis.call('PEXPIRE', KEYS[1], math.max(left, 0) + tonumber(ARGV[4]))
redis.call('ZADD', KEYS[3], tonumber(r[2]) * tonumber(ARGV[3]) + tonumber(r[3]), ARGV[1])
return 1
