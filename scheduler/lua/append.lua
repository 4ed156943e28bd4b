-- Add deltas to a job's stream, if the job is still this attempt's.
-- KEYS  1 job  2 stream  3 running
-- ARGV  1 job id  2 attempt  3 sequence number  4 payload  5 time to live (ms)  6 final state, or '' while it goes on
-- Returns 1 when the entry stands there, 0 when the job is someone else's, cancelled or gone: stop, say nothing.
-- A cancelled job's keys are removed here, by the last who could still write to them.
-- Invariant: entries of an older attempt never follow those of a newer one. Repeating a write changes nothing. An
-- answer ends once.
local r = redis.call('HMGET', KEYS[1], 'state', 'attempt')
if r[2] ~= ARGV[2] or (r[1] ~= 'running' and r[1] ~= ARGV[6]) then
  if r[2] == ARGV[2] or not r[2] then redis.call('HDEL', KEYS[3], ARGV[1]) end
  if r[2] == ARGV[2] and r[1] == 'cancelled' then redis.call('DEL', KEYS[1], KEYS[2]) end
  return 0
end
local id = ARGV[2] .. '-' .. ARGV[3]
if r[1] ~= 'running' then
  local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
  return last[1] and last[1][1] == id and 1 or 0
end
local added = redis.pcall('XADD', KEYS[2], id, 'd', ARGV[4])
if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
  return redis.error_reply(added.err)
end
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[1], 'state', ARGV[6])
  redis.call('HDEL', KEYS[1], 'body')
  redis.call('HDEL', KEYS[3], ARGV[1])
end
return 1
