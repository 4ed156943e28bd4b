-- Place a job: choose the worker that answers it soonest, write its record, add it to the line there, lay its ticket,
-- give it its home, wake its reader, and tell the worker when it keeps a slot free.
-- KEYS  1 job  2 arrivals  3 wake stream of the API  4 home  5 overflow mark  6 homes of the home that was known
--       7 lengths of answers like its own  8 lengths of all
--       then for each candidate: line, running, lease, homes, urgent, holding, control, its
--       list of tickets of this level
-- ARGV  1 job id  2 level  3 wait limit (ms)  4 time to live (ms)  5 longest line  6 home lifetime (ms; 0: it gets no home)
--       7 conversation  8 level weight  9 homes count for (ms)  10 number of record fields
--       11 lifetime of an API without a sign of life (ms)  12 key  13 agent  14 margin (ms)  15 near (ms)
--       16 jobs of a line that are looked at  17 prefix of job keys  18 least urgent of the urgent levels
--       19 slots are kept for these levels for (ms)  20 home that was known, or ''  21 share of the slots that is kept
--       22 ticket up to the worker's name, '' for none  23 what follows the name in it
--       24 tokens that the home must still hold, '' when they were read just now
--       then the record's fields and values, then for each candidate: name, limit of homes (-1: none), slots, 1 when it is
--       the home, prefill (ms), displaced (ms), prefill of a token (ms), new tokens, expected service (ms)
-- Returns a text, commas between: 1-based index of the candidate, 1 when the job may use the reserve of the window, its
-- cost, cost of the home or nothing, 1 when no slot there is free for it, then n, mean and m2 of the lengths of answers like
-- its own and of all, as far as they are known; or '-2' when its home is another one, '0' when every line is full, '-1'
-- when none is alive (one that is drained or being stopped is not).
-- Invariant: load is looked at and taken in one step, so several API processes never over-admit. Asked twice for the
-- same job (a retried command) it answers as the first time. What a home says of tokens and slot is its worker's.
-- The choice is that of `policy/placement.py`, held equal by a test.
-- The records' keys are made from names found in lines, so they cannot be passed in KEYS.
local FIXED_KEYS, KEYS_EACH, FIXED_ARGS, ARGS_EACH = 8, 8, 24, 9
local known = redis.call('HMGET', KEYS[1], 'worker', 'reserve')
local fields = tonumber(ARGV[10])
local first = FIXED_ARGS + 1 + 2 * fields
local count = (#KEYS - FIXED_KEYS) / KEYS_EACH
local level, level_weight, looked_at = tonumber(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[16])
local home_ms, margin, near_ms, urgent_end = tonumber(ARGV[6]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[18])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lives = (home_ms > 0 or ARGV[24] ~= '') and redis.call('HMGET', KEYS[4], 'worker', 'tokens') or {}

local function candidate(i)
  local k, a = FIXED_KEYS + 1 + KEYS_EACH * (i - 1), first + ARGS_EACH * (i - 1)
  return {index = i, line = KEYS[k], running = KEYS[k + 1], lease = KEYS[k + 2], homes = KEYS[k + 3], urgent = KEYS[k + 4],
          holding = KEYS[k + 5], control = KEYS[k + 6], tickets = KEYS[k + 7], name = ARGV[a], limit = tonumber(ARGV[a + 1]),
          slots = tonumber(ARGV[a + 2]), is_home = ARGV[a + 3] == '1', prefill_ms = tonumber(ARGV[a + 4]),
          displaced_ms = tonumber(ARGV[a + 5]), token_ms = tonumber(ARGV[a + 6]), new_tokens = ARGV[a + 7],
          expected_ms = ARGV[a + 8]}
end

local function takes_work(c)
  local lease = redis.call('GET', c.lease)
  return lease and not string.find(lease, '"state":"drain', 1, true)  -- draining or drained; to decode a lease takes ten times as long
end

local function running(c)
  local number, total = 0, 0
  for _, id in ipairs(redis.call('HKEYS', c.running)) do
    local r = redis.call('HMGET', ARGV[17] .. id, 'expected_ms', 'new_tokens', 'claimed_ms')
    local service = tonumber(r[1] or 0)
    local prefill = math.min(tonumber(r[2] or 0) * c.token_ms, service)
    local elapsed = math.max(0, now - tonumber(r[3] or now))
    number, total = number + 1, total + (service - prefill + math.max(0, prefill - elapsed))
  end
  return number, total
end

local function ahead(c)
  local mine, waiting = 0, {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', c.line, '-inf', '(' .. string.format('%.0f', (level + 1) * level_weight),
      'LIMIT', 0, looked_at)) do
    local r = redis.call('HMGET', ARGV[17] .. id, 'level', 'key', 'agent', 'expected_ms')
    local same = tonumber(r[1] or level) == level
    if same and r[2] == ARGV[12] and r[3] == ARGV[13] then mine = mine + 1 end
    waiting[#waiting + 1] = {same = same, key = r[2] or '', agent = r[3] or '', ms = tonumber(r[4] or 0)}
  end
  local number, total, seen = 0, 0, {}
  for _, job in ipairs(waiting) do
    local counts = true
    if job.same then
      local who = job.key .. ':' .. job.agent
      seen[who] = (seen[who] or 0) + 1
      counts = who == ARGV[12] .. ':' .. ARGV[13] or seen[who] <= mine + 1
    end
    if counts then number, total = number + 1, total + job.ms end
  end
  return number, total
end

local function kept_slots(c)
  return math.floor(tonumber(ARGV[21]) * c.slots)
end

-- The slots that this job may have: some are kept for the urgent levels, less those that are at work for them.
local function usable_slots(c)
  if level <= urgent_end or redis.call('EXISTS', c.urgent) == 0 then return c.slots end
  local urgent = 0
  for _, id in ipairs(redis.call('HKEYS', c.running)) do
    if tonumber(redis.call('HGET', ARGV[17] .. id, 'level') or 0) <= urgent_end then urgent = urgent + 1 end
  end
  return c.slots - math.max(0, kept_slots(c) - urgent)
end

local function wait_ms(c)
  local taken = c.queued + redis.call('HLEN', c.running)
  if taken < c.slots - kept_slots(c) then return 0 end
  local slots = usable_slots(c)
  if taken < slots then return 0 end
  local busy, busy_ms = running(c)
  local number, ms = ahead(c)
  local up_to = c.queued <= looked_at and 0 or redis.call('ZCOUNT', c.line, '-inf', '(' .. string.format('%.0f', (level + 1) * level_weight))
  local scale = math.max(1, up_to / looked_at)
  local all = busy + number * scale
  if all < slots then return 0 end
  return (all - slots + 1) * ((busy_ms + ms * scale) / all) / slots
end

local function measure(c)
  if c.limit >= 0 or not c.is_home then c.held = redis.call('ZCOUNT', c.homes, now - tonumber(ARGV[9]), '+inf') end
  local displaced = (c.is_home or c.held < c.slots) and 0 or c.displaced_ms
  c.wait = wait_ms(c)
  c.cost = c.wait + c.prefill_ms + displaced
end

-- Whether, whatever waits there, it can neither be chosen nor be the reason why another one is.
local function is_too_dear(c, best, home)
  if home and c.prefill_ms + margin >= home.cost then return true end
  return best and c.prefill_ms > best + math.max(margin, near_ms)
end

local function least(list)
  local cost = math.huge
  for _, c in ipairs(list) do cost = math.min(cost, c.cost) end
  return cost
end

local function choose(open)
  if #open == 1 then return open[1] end
  local enough = least(open) + margin
  local near = {}
  for _, c in ipairs(open) do
    if c.is_home and c.cost <= enough then return c end
    if (c.limit < 0 or c.held < c.limit) and c.cost <= enough then near[#near + 1] = c end
  end
  if #near == 0 then near = open end
  local close = least(near) + near_ms
  for _, c in ipairs(near) do
    if c.cost <= close then return c end
  end
end

local function leave_home(new)
  local old = lives[1]
  if not old or old == new then return end
  redis.call('DEL', KEYS[4])
  if old == ARGV[20] then redis.call('ZREM', KEYS[6], ARGV[7]) end
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
  redis.call('ZREMRANGEBYSCORE', c.homes, '-inf', now - home_ms)
  redis.call('PEXPIRE', c.homes, ARGV[6])
end

local function tell(c)
  if level <= urgent_end then redis.call('SET', c.urgent, 1, 'PX', ARGV[19]) end
  if redis.call('EXISTS', c.holding) == 1 then
    redis.call('XADD', c.control, 'MAXLEN', '~', 1000, '*', 'job', '')
    redis.call('PEXPIRE', c.control, 600000)
  end
end

local function lengths(key)
  local r = redis.call('HMGET', key, 'n', 'mean', 'm2')
  return (r[1] or '') .. ',' .. (r[2] or '') .. ',' .. (r[3] or '')
end

local function take(c, home_cost)
  local arrival, reserve = redis.call('INCR', KEYS[2]), redis.call('EXISTS', KEYS[5])
  redis.call('HSET', KEYS[1], 'state', 'queued', 'worker', c.name, 'level', ARGV[2],
    'arrival', arrival, 'arrival_ms', now, 'deadline_ms', now + tonumber(ARGV[3]), 'reserve', reserve,
    'key', ARGV[12], 'agent', ARGV[13], 'new_tokens', c.new_tokens, 'expected_ms', c.expected_ms,
    unpack(ARGV, FIXED_ARGS + 1, first - 1))
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('ZADD', c.line, level * level_weight + arrival, ARGV[1])
  if home_ms > 0 then settle(c) end
  if ARGV[22] ~= '' then redis.call('LPUSH', c.tickets, ARGV[22] .. c.name .. ARGV[23]) end
  tell(c)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 64, '*', 'job', ARGV[1])
  redis.call('PEXPIRE', KEYS[3], ARGV[11])
  return table.concat({c.index, reserve, string.format('%.0f', c.cost), home_cost, c.wait > 0 and 1 or 0,
    lengths(KEYS[7]), lengths(KEYS[8])}, ',')
end

local function home_moved()
  if known[1] or ARGV[24] == '' then return false end
  return lives[1] ~= ARGV[20] or (lives[2] or '0') ~= ARGV[24]
end

if home_moved() then return '-2' end

local open, alive, home, best = {}, false, nil, nil
for i = 1, count do
  local c = candidate(i)
  if known[1] then
    if c.name == known[1] then return i .. ',' .. known[2] .. ',0,,0' end
  elseif not is_too_dear(c, best, home) and takes_work(c) then
    alive = true
    c.queued = redis.call('ZCARD', c.line)
    if c.queued < tonumber(ARGV[5]) then
      measure(c)
      if c.is_home then home = c end
      best = math.min(best or c.cost, c.cost)
      open[#open + 1] = c
    end
  end
end
if #open > 0 then return take(choose(open), home and string.format('%.0f', home.cost) or '') end
return alive and '0' or '-1'
