-- Give a lease back, if it is no other incarnation's.
-- KEYS  1 lease  2 drain mark
-- ARGV  1 incarnation  2 '1': the worker was told to end, so whoever had it drained has got what they wanted
-- Returns 1 when it was ours, else 0.
-- Invariant: a process that lost its name to another one never ends that one's lease, or its drain. One whose lease has
-- run out, because the broker was away, was told to end all the same.
local lease = redis.call('GET', KEYS[1])
if lease and cjson.decode(lease)['incarnation'] ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then redis.call('DEL', KEYS[2]) end
return redis.call('DEL', KEYS[1])
