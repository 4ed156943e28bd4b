-- Keep what the end of an answer tells: the turn for the next one, the account of its cache, the size of its home.
-- KEYS  1 turn  2 latest conversation of the line  3 why  4 whys  5 misses  6 home
-- ARGV  1 request  2 conversation  3 turn  4 time to live of a turn (ms)  5 account  6 time to live of an account (ms)
--       7 accounts an agent keeps  8 cause  9 lost tokens  10 lost ms  11 worker  12 slot  13 tokens in the slot
-- Returns when it was kept (ms), 0 when it had been already or its home has moved on.
-- Invariant: repeating it changes nothing. A home that has moved on since is left as it is.
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[6])
redis.call('LPUSH', KEYS[4], ARGV[1])
redis.call('LTRIM', KEYS[4], 0, ARGV[7] - 1)
redis.call('PEXPIRE', KEYS[4], ARGV[6])
redis.call('HINCRBY', KEYS[5], ARGV[8] .. ':count', 1)
redis.call('HINCRBY', KEYS[5], ARGV[8] .. ':tokens', ARGV[9])
redis.call('HINCRBY', KEYS[5], ARGV[8] .. ':ms', ARGV[10])
if redis.call('HGET', KEYS[6], 'worker') ~= ARGV[11] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[6], 'tokens', ARGV[13], 'slot', ARGV[12], 'used_ms', now)
return now
