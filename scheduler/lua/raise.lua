-- Make a queued job more urgent, or let it wait longer, because one more client waits for its answer.
-- KEYS  1 job  2 line  3 list of the worker's tickets at the job's old level  4 urgent mark  5 holding mark
--       6 control stream
-- ARGV  1 job id  2 worker whose keys these are  3 old level  4 new level  5 level weight  6 longest wait from now (ms)
--       7 what a record lives on after its wait limit (ms)  8 last urgent level  9 lifetime of the urgent mark (ms)
--       10 token of this rise
-- Returns {'queued', 1 when it stands at the new level now and lacks a ticket there, else 0}, {'running'}, {'over'} when
--         it has ended or is unknown, {'moved', worker} or {'level', number}: ask again with the keys of that worker, or
--         of that level.
-- Invariant: a job only rises and its wait limit only grows; it keeps its place by arrival. Any ticket stands for any job
-- of a line, so one of the old level goes and the caller lays one at the new. Where a free slot is kept, its worker is
-- told: to the job at its new level it may be open. Asked twice with the same token (a retried command) it answers as the
-- first time.
local r = redis.call('HMGET', KEYS[1], 'state', 'worker', 'level', 'deadline_ms', 'arrival', 'rise')
if not r[1] then return {'over'} end
if r[2] ~= ARGV[2] then return {'moved', r[2]} end
if r[1] ~= 'queued' then return {r[1] == 'running' and 'running' or 'over'} end
local time = redis.call('TIME')
local deadline = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[6])
if deadline > tonumber(r[4]) then
  redis.call('HSET', KEYS[1], 'deadline_ms', string.format('%.0f', deadline))
  redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[6]) + tonumber(ARGV[7]))
end
local new = tonumber(ARGV[4])
if r[6] == ARGV[10] then return {'queued', 1} end
if new >= tonumber(r[3]) or not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return {'queued', 0} end
if r[3] ~= ARGV[3] then return {'level', tonumber(r[3])} end
redis.call('HSET', KEYS[1], 'level', new, 'rise', ARGV[10])
redis.call('ZADD', KEYS[2], new * tonumber(ARGV[5]) + tonumber(r[5]), ARGV[1])
redis.call('LPOP', KEYS[3])
if new <= tonumber(ARGV[8]) then redis.call('SET', KEYS[4], 1, 'PX', ARGV[9]) end
if redis.call('EXISTS', KEYS[5]) == 1 then
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', 1000, '*', 'job', '')
  redis.call('PEXPIRE', KEYS[6], 600000)
end
return {'queued', 1}
