-- End the running job of a dead worker with an error its client can understand.
-- KEYS  1 job  2 stream  3 running  4 lease of the worker
-- ARGV  1 job id  2 incarnation that is dead  3 payload  4 time to live (ms)
-- Returns 1 when it was ended here, 0 when the job had ended, runs elsewhere, or its incarnation lives after all.
-- Invariant: the attempt is raised with the last entry, so whatever the dead one still writes is refused.
-- The lease is looked at here, because it may have come back since the caller missed it.
local lease = redis.call('GET', KEYS[4])
if lease and cjson.decode(lease)['incarnation'] == ARGV[2] then return 0 end
if redis.call('HGET', KEYS[3], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[3], ARGV[1])
if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return 0 end
local attempt = redis.call('HINCRBY', KEYS[1], 'attempt', 1)
redis.call('HSET', KEYS[1], 'state', 'failed')
redis.call('HDEL', KEYS[1], 'body')
redis.call('XADD', KEYS[2], attempt .. '-0', 'd', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 1
