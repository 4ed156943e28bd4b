-- Renew a worker's lease and the lives of the jobs it runs.
-- KEYS  1 lease  2 workers  3 running  4 drain mark  then a job and its stream for each running job
-- ARGV  1 name  2 incarnation  3 lease value  4 lease lifetime (ms)  5 time to live of running jobs (ms)
--       6 prefix of wake streams' keys  7 a drain mark lives on for (ms)
-- Returns {1, {state of each running job or ''}, {jobs claimed by this incarnation}, how long answers may still go on
-- here (ms), because the worker is to be drained, or -1}, or {0} when another incarnation
-- holds the name. A running job whose API process has died is cancelled here: nobody would read the answer.
-- Invariant: one name, one living incarnation. A job that waits again keeps the life that its wait needs, though one who
-- has not heard of it still holds it.
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held)['incarnation'] ~= ARGV[2] then return {0} end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now, ARGV[1])
local states, claimed = {}, {}
for i = 5, #KEYS, 2 do
  local job = redis.call('HMGET', KEYS[i], 'state', 'api')
  if job[1] == 'running' then
    redis.call('PEXPIRE', KEYS[i], ARGV[5])
    redis.call('PEXPIRE', KEYS[i + 1], ARGV[5])
  end
  if job[1] == 'running' and redis.call('EXISTS', ARGV[6] .. job[2]) == 0 then
    redis.call('HSET', KEYS[i], 'state', 'cancelled')
    job[1] = 'cancelled'
  end
  states[#states + 1] = job[1] or ''
end
local running = redis.call('HGETALL', KEYS[3])
for i = 1, #running, 2 do
  if running[i + 1] == ARGV[2] then claimed[#claimed + 1] = running[i] end
end
local until_ms = redis.call('GET', KEYS[4])
if until_ms then redis.call('PEXPIRE', KEYS[4], ARGV[7]) end
return {1, states, claimed, until_ms and math.max(0, tonumber(until_ms) - now) or -1}
