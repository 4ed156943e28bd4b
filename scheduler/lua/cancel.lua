-- Give up a job: take it out of its line with one ticket of its level, or tell its worker to stop.
-- KEYS  1 job  2 stream  3 line  4 control stream  5 list of the worker's tickets at the job's level
-- ARGV  1 job id  2 worker whose keys these are  3 '1': only if it is still queued
-- Returns {'queued'} it was waiting and is gone, {'running'} it runs (and was told to stop, unless only-queued),
--         {'over'} it has ended or is unknown, {'moved', worker} ask again with that worker's keys.
-- Invariant: any ticket stands for any job of a line, so removing one of the level keeps tickets and jobs equal.
local r = redis.call('HMGET', KEYS[1], 'state', 'worker')
if not r[1] then
  if redis.call('ZREM', KEYS[3], ARGV[1]) == 1 then redis.call('LPOP', KEYS[5]) end
  return {'over'}
end
if r[2] ~= ARGV[2] then return {'moved', r[2]} end
if r[1] == 'queued' then
  if redis.call('ZREM', KEYS[3], ARGV[1]) == 1 then redis.call('LPOP', KEYS[5]) end
  redis.call('DEL', KEYS[1], KEYS[2])
  return {'queued'}
end
if r[1] ~= 'running' then return {'over'} end
if ARGV[3] ~= '1' then
  redis.call('HSET', KEYS[1], 'state', 'cancelled')
  redis.call('PEXPIRE', KEYS[1], 60000)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'job', ARGV[1])
  redis.call('PEXPIRE', KEYS[4], 600000)
end
return {'running'}
