-- Put a running job of an attempt that was lost back into its worker's line, at its old place, for another attempt.
-- KEYS  1 job  2 line  3 running  4 lease of the worker  5 stream
-- ARGV  1 job id  2 incarnation that ran it  3 level weight  4 most attempts  5 how long it may wait at least (ms)
--       6 what a record lives on after its wait limit (ms)  7 '1': that incarnation itself gives it up
--       8 '1': it cut the answer because it is to end or drained, which is no fault of the answer's: counts for nothing
-- Returns 1 when it waits again, 0 when it has ended, runs elsewhere, has had its attempts, or its incarnation lives.
-- Invariant: from here on nothing that the lost attempt writes is taken: `append` asks for a running job of its attempt,
-- and the next claim raises the attempt. What stands in the stream stays, for as long as the record: the next attempt
-- goes on from it. Asked twice (a retried command) it answers as the first time, as long as the job waits.
-- The lease is looked at here, because it may have come back since the caller missed it.
local lease = redis.call('GET', KEYS[4])
if ARGV[7] ~= '1' and lease and cjson.decode(lease)['incarnation'] == ARGV[2] then return 0 end
local r = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'level', 'arrival', 'deadline_ms', 'body', 'lost_by', 'spared')
if r[1] == 'queued' and r[7] == ARGV[2] then return 1 end
if redis.call('HGET', KEYS[3], ARGV[1]) ~= ARGV[2] then return 0 end
if r[1] ~= 'running' or not r[6] or tonumber(r[2]) - tonumber(r[8] or 0) >= tonumber(ARGV[4]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline = math.max(tonumber(r[5]), now + tonumber(ARGV[5]))
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'queued', 'deadline_ms', deadline, 'lost_by', ARGV[2], 'queued_ms', now)
if ARGV[8] == '1' then redis.call('HINCRBY', KEYS[1], 'spared', 1) end
redis.call('HDEL', KEYS[1], 'claim', 'claimed_ms')
redis.call('PEXPIRE', KEYS[1], deadline - now + tonumber(ARGV[6]))
redis.call('PEXPIRE', KEYS[5], deadline - now + tonumber(ARGV[6]))
redis.call('ZADD', KEYS[2], tonumber(r[3]) * tonumber(ARGV[3]) + tonumber(r[4]), ARGV[1])
return 1
