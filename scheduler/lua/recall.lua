-- The last turn that a request is compared with.
-- KEYS  1 turn of its conversation  2 latest conversation of its line
-- ARGV  1 prefix of turn keys
-- Returns the conversation's last turn, else that of the conversation its line had last, else nil.
-- Invariant: only reads. The second turn's key is made from a name found in the first, so it cannot be passed in KEYS.
local own = redis.call('GET', KEYS[1])
if own then return own end
local latest = redis.call('GET', KEYS[2])
return latest and redis.call('GET', ARGV[1] .. latest)
