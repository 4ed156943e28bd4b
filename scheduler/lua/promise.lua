-- Let a caller in, or refuse it and promise it the next free place in time.
-- KEYS  1 places  2 lapses  3 counts, then for each worker that serves it: line, running
-- ARGV  1 fingerprint of the request  2 agent, its key included  3 level  4 expected wait as the lines stand (ms)
--       5 longest wait it accepts (ms)  6 wait at which a promised place is good (ms)  7 usual service (ms)
--       8 longest line  9 level weight  10 longest hint (s)
--       11 how long a promise waits for its caller after the time it was told (ms)
--       12 what a place in a line takes longer than expected, as a factor  13 most agents that are told apart
--       14 most promises  15 jobs of the agent at that level in the lines  16 agents that take turns with it, itself
--       included, then for each worker: slots
-- Returns {1, expected wait (ms), 1 when it held a promise, else 0} when it may come in, else {0, expected wait, seconds after which to ask again, 1 when
-- the lines have no room, else 0}. The wait counts those who were promised a place before, and takes for granted that the
-- other agents go on asking: who is refused knows that there is more to do than can be done.
-- Invariant: a request holds one promise at most, and keeps its place in their order until it comes in or lapses; who
-- holds one waits behind earlier promises only, everyone else behind all of its level and of more urgent ones. Inside a
-- level no agent has more before one of another than that one has itself. Free slots and room are those of now: with a
-- free slot nobody is refused.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local FIXED_KEYS, FIXED_ARGS = 3, 16
local agent, level, member = ARGV[2], tonumber(ARGV[3]), ARGV[1] .. ':' .. ARGV[2]
local usual, weight = tonumber(ARGV[7]), tonumber(ARGV[9])
local slots, room, free = 0, 0, false
for i = 1, (#KEYS - FIXED_KEYS) / 2 do
  local own = tonumber(ARGV[FIXED_ARGS + i])
  local queued = redis.call('ZCARD', KEYS[FIXED_KEYS + 2 * i - 1])
  slots, room = slots + own, room + math.max(0, tonumber(ARGV[8]) - queued)
  free = free or queued + redis.call('HLEN', KEYS[FIXED_KEYS + 2 * i]) < own
end
slots = math.max(1, slots)

local function level_start(number) return string.format('%.0f', number * weight) end

local function release(gone)
  local score = redis.call('ZSCORE', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
  if not score then return end
  redis.call('ZREM', KEYS[1], gone)
  local whose = math.floor(score / weight) .. ':' .. string.match(gone, '^[^:]*:(.*)$')
  if redis.call('HINCRBY', KEYS[3], whose, -1) <= 0 then redis.call('HDEL', KEYS[3], whose) end
end

-- How many promises come before this request, and how many of these its own agent holds; `share` is the part of its
-- level's promises that are earlier.
local function before(place)
  local urgent = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. level_start(level))
  local all = redis.call('ZCOUNT', KEYS[1], level_start(level), '(' .. level_start(level + 1))
  local earlier = place and redis.call('ZCOUNT', KEYS[1], level_start(level), '(' .. place) or all
  if all == 0 or redis.call('HLEN', KEYS[3]) > tonumber(ARGV[13]) then return urgent + earlier, 0 end
  local share, counts, prefix = earlier / all, redis.call('HGETALL', KEYS[3]), level .. ':'
  local mine = tonumber(redis.call('HGET', KEYS[3], prefix .. agent) or 0)
  mine = place and math.max(0, mine - 1) * share or mine
  local total = mine
  for i = 1, #counts, 2 do
    local is_other = string.sub(counts[i], 1, #prefix) == prefix and counts[i] ~= prefix .. agent
    if is_other then total = total + math.min(tonumber(counts[i + 1]) * share, mine + 1) end
  end
  return urgent + math.min(total, earlier), mine
end

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do release(gone) end

local place = redis.call('ZSCORE', KEYS[1], member)
local jobs, own = before(place)
local turns = (tonumber(ARGV[15]) + own) * tonumber(ARGV[16])
local wait = math.floor(math.max(tonumber(ARGV[4]) + jobs * usual / slots, turns * usual / slots))
local has_room = room > (place and 0 or jobs)
if free or (has_room and wait <= tonumber(ARGV[5])) then
  release(member)
  return {1, wait, place and 1 or 0}
end

local due = wait - tonumber(ARGV[6])
-- A place in a line comes free with each start, and a start comes each time one of the slots has done its work.
if not has_room then due = math.max(due, (jobs + 1 - room) * usual / slots * tonumber(ARGV[12])) end
local told = math.max(1, math.min(tonumber(ARGV[10]), math.ceil(due / 1000)))
if not place and redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[14]) then
  local last = redis.call('ZREVRANGEBYSCORE', KEYS[1], '(' .. level_start(level + 1), level_start(level), 'WITHSCORES',
    'LIMIT', 0, 1)
  local score = last[2] and tonumber(last[2]) + 1 or tonumber(level_start(level))
  redis.call('ZADD', KEYS[1], string.format('%.0f', score), member)
  redis.call('HINCRBY', KEYS[3], level .. ':' .. agent, 1)
  place = score
end
if place then redis.call('ZADD', KEYS[2], now + told * 1000 + tonumber(ARGV[11]), member) end
for key = 1, 3 do redis.call('PEXPIRE', KEYS[key], (tonumber(ARGV[10]) + 1) * 1000 + tonumber(ARGV[11])) end
return {0, wait, told, has_room and 0 or 1}
