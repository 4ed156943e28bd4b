-- Give a lease back, if it is still this incarnation's.
-- KEYS  1 lease
-- ARGV  1 incarnation
-- Returns 1 when it was ours, else 0.
-- Invariant: a process that lost its name to another one never ends that one's lease.
local lease = redis.call('GET', KEYS[1])
if not lease or cjson.decode(lease)['incarnation'] ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
