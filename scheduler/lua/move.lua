-- Move a queued job to another worker's line, keeping its place by arrival.
-- KEYS  1 job  2 old line  3 new line  4 list of the old worker's tickets at the job's level  5 home  6 old homes  7 new homes
-- ARGV  1 job id  2 old worker  3 new worker  4 conversation  5 home lifetime (ms)  6 longest line
-- Returns 1 when it was moved, 0 when it was no longer queued there or the new line is full.
-- Invariant: a job stands in exactly one line, the one its record names; no line grows past its limit. What a home says
-- of tokens and slot is its worker's.
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not score or redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[6]) then return 0 end
local r = redis.call('HMGET', KEYS[1], 'state', 'worker')
redis.call('ZREM', KEYS[2], ARGV[1])
if r[1] ~= 'queued' or r[2] ~= ARGV[2] then return 0 end
redis.call('LPOP', KEYS[4])
redis.call('HSET', KEYS[1], 'worker', ARGV[3])
redis.call('ZADD', KEYS[3], score, ARGV[1])
local time = redis.call('TIME')
redis.call('DEL', KEYS[5])
redis.call('HSET', KEYS[5], 'worker', ARGV[3], 'used_ms', time[1] * 1000)
redis.call('PEXPIRE', KEYS[5], ARGV[5])
redis.call('ZREM', KEYS[6], ARGV[4])
redis.call('ZADD', KEYS[7], time[1] * 1000, ARGV[4])
redis.call('PEXPIRE', KEYS[7], ARGV[5])
return 1
