-- Take the sign of life of a dead API process away, unless it has spoken since it was looked at.
-- KEYS  1 its wake stream  2 all API processes
-- ARGV  1 API process  2 time to live of a sign of life that is old enough, at most (ms)
-- Returns 1 when it is forgotten, else 0.
if redis.call('PTTL', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
return 1
