-- Move a queued job to another worker's line, keeping its place by arrival.
-- KEYS  1 job  2 old line  3 new line  4 list of the old worker's tickets at the job's level  5 home  6 old homes
--       7 new homes  8 urgent mark, 9 holding mark and 10 control stream of the new worker
-- ARGV  1 job id  2 old worker  3 new worker  4 conversation  5 home lifetime (ms)  6 longest line
--       7 new tokens there  8 expected service there (ms)  9 '1': for balance, once in its life
--       10 least urgent of the urgent levels  11 slots are kept for these levels for (ms)  12 token of this move
-- Returns 1 when it was moved, 0 when it was no longer queued there, was moved for balance before, or the new line is
-- full.
-- Invariant: a job stands in exactly one line, the one its record names; no line grows past its limit. What a home says
-- of tokens and slot is its worker's. Asked twice with the same token (a retried command) it answers as the first time.
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
local r = redis.call('HMGET', KEYS[1], 'state', 'worker', 'moved', 'level', 'move')
if r[1] == 'queued' and r[2] == ARGV[3] and r[5] == ARGV[12] then return 1 end
if not score or redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[6]) then return 0 end
if r[1] ~= 'queued' or r[2] ~= ARGV[2] then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 0
end
if ARGV[9] == '1' and r[3] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('LPOP', KEYS[4])
redis.call('HSET', KEYS[1], 'worker', ARGV[3], 'new_tokens', ARGV[7], 'expected_ms', ARGV[8], 'move', ARGV[12])
if ARGV[9] == '1' then redis.call('HSET', KEYS[1], 'moved', 1) end
redis.call('ZADD', KEYS[3], score, ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('DEL', KEYS[5])
redis.call('HSET', KEYS[5], 'worker', ARGV[3], 'used_ms', now)
redis.call('PEXPIRE', KEYS[5], ARGV[5])
redis.call('ZREM', KEYS[6], ARGV[4])
redis.call('ZADD', KEYS[7], now, ARGV[4])
redis.call('PEXPIRE', KEYS[7], ARGV[5])
if tonumber(r[4]) <= tonumber(ARGV[10]) then redis.call('SET', KEYS[8], 1, 'PX', ARGV[11]) end
if redis.call('EXISTS', KEYS[9]) == 1 then
  redis.call('XADD', KEYS[10], 'MAXLEN', '~', 1000, '*', 'job', '')
  redis.call('PEXPIRE', KEYS[10], 600000)
end
return 1
