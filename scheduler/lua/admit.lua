-- Place a job: write its record, add it to the line of the best candidate with room, give it its home, wake its reader.
-- KEYS  1 job  2 arrivals  3 wake stream of the API  4 home  5 overflow mark
--       then for each candidate: line, running, lease, homes
-- ARGV  1 job id  2 level  3 wait limit (ms)  4 time to live (ms)  5 longest line  6 home lifetime (ms; 0: it gets no home)
--       7 conversation  8 level weight  9 homes count for (ms)  10 number of record fields
--       11 lifetime of an API without a sign of life (ms)
--       then the record's fields and values, then for each candidate: name, load limit (-1: none), slots
-- Returns {1-based index of the candidate, 1 when the job may use the reserve of the window}, or {0} when every line is full, {-1} when none is alive
-- (one that is being stopped is not).
-- Invariant: load is checked and taken in one step, so several API processes never over-admit. Asked twice for the
-- same job (a retried command) it answers as the first time. What a home says of tokens and slot is its worker's.
local known = redis.call('HMGET', KEYS[1], 'worker', 'reserve')
local fields = tonumber(ARGV[10])
local first = 12 + 2 * fields
local count = (#KEYS - 5) / 4
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function candidate(i)
  local k, a = 6 + 4 * (i - 1), first + 3 * (i - 1)
  return {line = KEYS[k], running = KEYS[k + 1], lease = KEYS[k + 2], homes = KEYS[k + 3],
          name = ARGV[a], limit = tonumber(ARGV[a + 1]), slots = tonumber(ARGV[a + 2])}
end

local function takes_work(c)
  local lease = redis.call('GET', c.lease)
  return lease and cjson.decode(lease)['state'] ~= 'draining'
end

local function leave_home(new)
  local old = redis.call('HGET', KEYS[4], 'worker')
  if not old or old == new then return end
  redis.call('DEL', KEYS[4])
  for i = 1, count do
    local c = candidate(i)
    if c.name == old then redis.call('ZREM', c.homes, ARGV[7]) end
  end
end

local function settle(c)
  leave_home(c.name)
  redis.call('HSET', KEYS[4], 'worker', c.name, 'used_ms', now)
  redis.call('PEXPIRE', KEYS[4], ARGV[6])
  redis.call('ZADD', c.homes, now, ARGV[7])
  redis.call('ZREMRANGEBYSCORE', c.homes, '-inf', now - tonumber(ARGV[6]))
  redis.call('PEXPIRE', c.homes, ARGV[6])
end

local function take(i, c)
  local arrival, reserve = redis.call('INCR', KEYS[2]), redis.call('EXISTS', KEYS[5])
  redis.call('HSET', KEYS[1], 'state', 'queued', 'attempt', 0, 'worker', c.name, 'level', ARGV[2],
    'arrival', arrival, 'arrival_ms', now, 'deadline_ms', now + tonumber(ARGV[3]),
    'reserve', reserve, unpack(ARGV, 12, first - 1))
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('ZADD', c.line, tonumber(ARGV[2]) * tonumber(ARGV[8]) + arrival, ARGV[1])
  if tonumber(ARGV[6]) > 0 then settle(c) end
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 64, '*', 'job', ARGV[1])
  redis.call('PEXPIRE', KEYS[3], ARGV[11])
  return {i, reserve}
end

local best, alive = nil, false
for i = 1, count do
  local c = candidate(i)
  if known[1] then
    if c.name == known[1] then return {i, tonumber(known[2])} end
  elseif takes_work(c) then
    alive = true
    local queued = redis.call('ZCARD', c.line)
    if queued < tonumber(ARGV[5]) then
      local busy = queued + redis.call('HLEN', c.running)
      local homes = redis.call('ZCOUNT', c.homes, now - tonumber(ARGV[9]), '+inf')
      local load = math.max(busy, homes)
      -- In this order: the home; the first under its limit with a free slot; any with a free slot, the least loaded
      -- first; the first under its limit; the least loaded.
      local free = busy < c.slots
      if c.limit < 0 or (free and load < c.limit) then return take(i, c) end
      local rank = free and 0 or (load < c.limit and 1 or 2)
      local weight = rank == 1 and 0 or load / c.slots
      if not best or rank < best.rank or (rank == best.rank and weight < best.weight) then
        best = c
        best.rank, best.weight, best.index = rank, weight, i
      end
    end
  end
end
if best then return take(best.index, best) end
if alive then return {0} end
return {-1}
