-- Renew a worker's lease and the lives of the jobs it runs.
-- KEYS  1 lease  2 workers  then a job and its stream for each running job
-- ARGV  1 name  2 incarnation  3 lease value  4 lease lifetime (ms)  5 time to live of running jobs (ms)
-- Returns {1, state of each running job or ''} or {0} when another incarnation holds the name.
-- Invariant: one name, one living incarnation.
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held)['incarnation'] ~= ARGV[2] then return {0} end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
local answer = {1}
for i = 3, #KEYS, 2 do
  redis.call('PEXPIRE', KEYS[i], ARGV[5])
  redis.call('PEXPIRE', KEYS[i + 1], ARGV[5])
  answer[#answer + 1] = redis.call('HGET', KEYS[i], 'state') or ''
end
return answer
