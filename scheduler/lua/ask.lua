-- Put a request to count into the line of its model, and wake the process that asks.
-- KEYS  1 count  2 wake
-- ARGV  1 stream that the reply goes to  2 packed request  3 time to answer (ms)  4 requests the line may hold
--       5 time to live of the wake stream (ms)
-- Returns how many wait now.
-- Invariant: an entry says until when its asker waits (broker's clock); the line is bounded, the oldest go first; and
-- it lives no longer than the last of its askers waits.
local t = redis.call('TIME')
local until_ms = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[3]
redis.call('XADD', KEYS[2], 'MAXLEN', 64, '*', 'job', ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('RPUSH', KEYS[1], ARGV[1] .. '\n' .. string.format('%d', until_ms) .. '\n' .. ARGV[2])
redis.call('LTRIM', KEYS[1], -ARGV[4], -1)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return redis.call('LLEN', KEYS[1])
