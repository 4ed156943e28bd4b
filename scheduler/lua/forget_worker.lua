-- Forget a worker that is gone: its name, its empty books, and tickets that nobody will take.
-- KEYS  1 lease  2 workers  3 line  4 running  then everything else that is its own
-- ARGV  1 name
-- Returns 1 when it is forgotten, 0 when it lives or jobs of its are left.
-- Invariant: a worker with a job is known, so that its line is looked after.
if redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) > 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('DEL', unpack(KEYS, 5))
return 1
