-- Let a caller in, or refuse it and promise it the next free place in time.
-- KEYS  1 places  2 lapses  3 counts  4 arrivals, then for each worker that serves it: line, running
-- ARGV  1 fingerprint of the request  2 agent, its key included  3 level  4 expected wait as the lines stand (ms)
--       5 longest wait it accepts (ms)  6 wait at which a promised place is good (ms)  7 usual service (ms)
--       8 longest line  9 what lies between two levels (ms)  10 longest hint (s)
--       11 how long a promise waits for its caller after the time it was told (ms)
--       12 what a place in a line takes longer than expected, as a factor  13 most agents that are told apart
--       14 most promises  15 jobs of the agent at that level in the lines  16 agents that take turns with it, itself
--       included  17 starts over which arrivals are counted, then for each worker: slots
-- Returns {1, expected wait (ms), 1 when it held a promise, else 0} when it may come in, else {0, expected wait, seconds
-- after which to ask again, 1 when the lines have no room, else 0}.
-- Invariant: a request holds one promise at most, with the time when it is due, and keeps it until it comes in or lapses.
-- Who comes when its promise is due needs room for itself and a wait that it accepts: what others were promised does not
-- count against it. Who comes earlier waits behind those due before it, who has none behind as many of each agent of its
-- level as its own would have; both behind all of more urgent levels, and for as much as these go on bringing. With a
-- free slot nobody is refused: slots and room are those of now.
local FIXED_KEYS, FIXED_ARGS, LONGEST_MS, LEAST_PART = 4, 17, 1e9, 0.001
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local agent, level, member = ARGV[2], tonumber(ARGV[3]), ARGV[1] .. ':' .. ARGV[2]
local line_wait, limit, good = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local between, longest_hint, grace = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local lifetime = (longest_hint + 1) * 1000 + grace
local slots, room, free = 0, 0, false
for i = 1, (#KEYS - FIXED_KEYS) / 2 do
  local own = tonumber(ARGV[FIXED_ARGS + i])
  local queued = redis.call('ZCARD', KEYS[FIXED_KEYS + 2 * i - 1])
  slots, room = slots + own, room + math.max(0, tonumber(ARGV[8]) - queued)
  free = free or queued + redis.call('HLEN', KEYS[FIXED_KEYS + 2 * i]) < own
end
local start = tonumber(ARGV[7]) / math.max(1, slots)  -- from one start to the next

local function score_of(of_level, due) return string.format('%.0f', of_level * between + due) end

local function release(gone)
  local score = redis.call('ZSCORE', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
  if not score then return end
  redis.call('ZREM', KEYS[1], gone)
  local whose = math.floor(score / between) .. ':' .. string.match(gone, '^[^:]*:(.*)$')
  if redis.call('HINCRBY', KEYS[3], whose, -1) <= 0 then redis.call('HDEL', KEYS[3], whose) end
end

-- How many have come lately at a level; each fades with the starts since.
local function arrivals(of_level)
  local r = redis.call('HMGET', KEYS[4], of_level .. ':n', of_level .. ':at')
  local starts = math.max(0, now - tonumber(r[2] or now)) / start
  return tonumber(r[1] or 0) * math.exp(-starts / tonumber(ARGV[17]))
end

local function arrive()
  redis.call('HSET', KEYS[4], level .. ':n', arrivals(level) + 1, level .. ':at', now)
  redis.call('PEXPIRE', KEYS[4], lifetime)
end

-- By how much a wait grows while more urgent callers go on coming as they do: they take that part of the starts
-- (Cobham, 1954, for the queue with priorities).
local function stretch()
  local part = 0
  for number = 0, level - 1 do part = part + arrivals(number) / tonumber(ARGV[17]) end
  return 1 / math.max(LEAST_PART, 1 - part)
end

-- How many more urgent ones are to come now.
local function urgent_due()
  local number_due = 0
  for number = 0, level - 1 do
    number_due = number_due + redis.call('ZCOUNT', KEYS[1], score_of(number, 0), score_of(number, now))
  end
  return number_due
end

-- How many promises come before a request with none, and how many its own agent holds.
local function before_newcomer()
  local all = redis.call('ZCOUNT', KEYS[1], score_of(level, 0), '(' .. score_of(level + 1, 0))
  local mine = tonumber(redis.call('HGET', KEYS[3], level .. ':' .. agent) or 0)
  if redis.call('HLEN', KEYS[3]) > tonumber(ARGV[13]) then return all, mine end
  local counts, total, prefix = redis.call('HGETALL', KEYS[3]), mine, level .. ':'
  for i = 1, #counts, 2 do
    local is_other = string.sub(counts[i], 1, #prefix) == prefix and counts[i] ~= prefix .. agent
    if is_other then total = total + math.min(tonumber(counts[i + 1]), mine + 1) end
  end
  return math.min(total, all), mine
end

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do release(gone) end

local place = redis.call('ZSCORE', KEYS[1], member)
local urgent = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score_of(level, 0))
local ahead, own, jobs, slower = 0, 0, 0, 1
if not place then arrive() end
if place and tonumber(place) <= tonumber(score_of(level, now)) then
  jobs = urgent_due()
else
  if place then
    ahead = redis.call('ZCOUNT', KEYS[1], score_of(level, 0), '(' .. place)
  else
    ahead, own = before_newcomer()
  end
  jobs, slower = urgent + ahead, stretch()
end
-- Refusals show that there is more to do than can be done: the other agents are taken to go on asking.
local turns = (tonumber(ARGV[15]) + own) * tonumber(ARGV[16])
local wait = math.floor(math.min(LONGEST_MS, math.max(line_wait + jobs * start, turns * start) * slower))
local has_room = room > jobs
if free or (has_room and wait <= limit) then
  release(member)
  return {1, wait, place and 1 or 0}
end

local due = wait - good
-- A place in a line comes free with each start, and a start comes each time one of the slots has done its work.
if not has_room then due = math.max(due, (jobs + 1 - room) * start * tonumber(ARGV[12]) * slower) end
-- Nor before those that it waits behind, should these have been told a time when things looked worse.
local last = ahead > 0 and redis.call('ZRANGE', KEYS[1], urgent + ahead - 1, urgent + ahead - 1, 'WITHSCORES')
if last and last[2] then due = math.max(due, tonumber(last[2]) - level * between - now + 1) end
due = math.ceil(math.max(1, math.min(LONGEST_MS, due)))
local told = math.max(1, math.min(longest_hint, math.ceil(due / 1000)))
if place or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[14]) then
  if not place then redis.call('HINCRBY', KEYS[3], level .. ':' .. agent, 1) end
  local score = score_of(level, now + due)
  if not place or tonumber(score) < tonumber(place) then redis.call('ZADD', KEYS[1], score, member) end
  redis.call('ZADD', KEYS[2], now + told * 1000 + grace, member)
end
for key = 1, 3 do redis.call('PEXPIRE', KEYS[key], lifetime) end
return {0, wait, told, has_room and 0 or 1}
