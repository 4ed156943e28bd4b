-- Take the best job of a line for one attempt, as `policy.claiming.choose` says, and charge what it is expected to use.
-- KEYS  1 line  2 running  3 back  4 urgent  5 holding
-- ARGV  1 worker  2 incarnation  3 time to live of a running job (ms)  4 prefix of job keys  5 prefix of wake streams' keys
--       6 prefix of the keys of attained service  7 token of this claim  8 slots  9 tickets held when this one is, too
--       10 ageing (ms)  11 half-life of service (ms)  12 share of the slots that is kept for urgent levels
--       13 most urgent levels end with this one  14 longest hold (ms)  15 how long service is remembered (ms)
--       16 weight of a new time in a tool call  17 what the free slots hold, as JSON: [[conversation, level, prefill (ms),
--       ms for which it is expected back from a tool]]  18 prefill of a token here (ms)  19 factor on a prefill that is
--       lost  20 most steps of ageing for which a slot is kept
-- Returns nil when nothing is there; {ms} when jobs wait but the free slot is kept for others, for so long at most; else
-- {id, attempt, level, agent, conversation, kind, queue_ms, reserve, body, key, expected_ms, claimed_ms, trace, ms that it
-- waited for this attempt}.
-- Invariant: a job leaves the line, becomes running and is charged in one step; one that is cancelled, late or gone is
-- dropped, and so is one whose API process has died: nobody would read the answer.
-- Asked twice with the same token (a retried command) it answers with the same job and charges it once.
-- Keys of records and of service are made from names found in the line, so they cannot be passed in KEYS.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local slots, ageing, half_life = tonumber(ARGV[8]), tonumber(ARGV[10]), tonumber(ARGV[11])
local urgent_end, kind_rank = tonumber(ARGV[13]), {main = 0, subagent = 1, side = 2, warm = 3}

local function steps(since)
  return math.floor(math.max(0, now - since) / ageing)
end

local function answer(id)
  local r = redis.call('HMGET', ARGV[4] .. id, 'attempt', 'level', 'agent', 'conversation', 'kind', 'arrival_ms',
    'reserve', 'body', 'key', 'expected_ms', 'claimed_ms', 'trace', 'queued_ms')
  return {id, tonumber(r[1]), tonumber(r[2]), r[3], r[4], r[5], tonumber(r[11]) - tonumber(r[6]), tonumber(r[7]), r[8],
    r[9] or '', r[10] or '0', tonumber(r[11]), r[12] or '', tonumber(r[11]) - tonumber(r[13] or r[6])}
end

-- What runs here: how often each agent, which conversations, and how many not of the urgent levels.
local runs, conversations, busy, background, here, agents_here = {}, {}, 0, 0, {}, 0

local function is_here(whom)
  if not here[whom] then here[whom], agents_here = true, agents_here + 1 end
end

local running = redis.call('HGETALL', KEYS[2])
for i = 1, #running, 2 do
  if running[i + 1] == ARGV[2] then
    local r = redis.call('HMGET', ARGV[4] .. running[i], 'claim', 'key', 'agent', 'level', 'conversation')
    if r[1] == ARGV[7] then return answer(running[i]) end
    local whom = (r[2] or '') .. ':' .. (r[3] or '')
    runs[whom], busy = (runs[whom] or 0) + 1, busy + 1
    conversations[r[5] or ''] = true
    if tonumber(r[4] or 0) > urgent_end then background = background + 1 end
    is_here(whom)
  end
end

-- What waits.
local rows, coming, alive = {}, {}, {}

local function is_alive(api)
  if alive[api] == nil then alive[api] = redis.call('EXISTS', ARGV[5] .. api) == 1 end
  return alive[api]
end

for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local r = redis.call('HMGET', ARGV[4] .. id, 'state', 'deadline_ms', 'api', 'level', 'key', 'agent', 'kind', 'arrival',
    'arrival_ms', 'expected_ms', 'agent_weight', 'key_weight', 'conversation', 'new_tokens')
  if r[1] == 'queued' and tonumber(r[2]) >= now and is_alive(r[3]) then
    r.id, rows[#rows + 1], coming[r[13] or ''] = id, r, true
    is_here((r[5] or '') .. ':' .. r[6])
  else
    redis.call('ZREM', KEYS[1], id)
    if r[1] == 'queued' and not is_alive(r[3]) then redis.call('DEL', ARGV[4] .. id) end
  end
end
if #rows == 0 then return nil end

-- Whom what the free slots hold keeps from them.
local held, living, cached = nil, {}, {}
for _, one in ipairs(cjson.decode(ARGV[17])) do
  if not conversations[one[1]] then
    cached[one[1]] = true
    if one[4] > 0 or coming[one[1]] then living[#living + 1] = one end
  end
end

local function longest_wait(level)
  return ageing * math.min(tonumber(ARGV[20]), level + 1)
end

local function barred(r)
  local level, guards, least, left = tonumber(r[4]), 0, nil, nil
  for _, one in ipairs(living) do
    if one[2] <= level then
      guards, least = guards + 1, math.min(least or one[3], one[3])
      if one[4] > 0 then left = math.min(left or one[4], one[4]) end
    end
  end
  if guards < math.max(1, slots - busy) or cached[r[13] or ''] then return 0 end
  local worth = tonumber(ARGV[19]) * least - tonumber(r[14] or 0) * tonumber(ARGV[18])
  local own = math.min(worth, longest_wait(level)) - (now - tonumber(r[9]))
  return own > 0 and math.min(own, left or own) or 0
end

-- Who may have a slot, in pairs of a level and an agent.
local pairs_by_name, line = {}, {}

local function add(r)
  local id, level, whom = r.id, tonumber(r[4]), (r[5] or '') .. ':' .. r[6]
  local arrival, since = tonumber(r[8]), tonumber(r[9])
  local name = level .. ':' .. whom
  local pair = pairs_by_name[name]
  if not pair then
    pair = {name = name, level = level, whom = whom, key = r[5] or '', oldest = arrival, since = since}
    pairs_by_name[name] = pair
    line[#line + 1] = pair
  end
  if arrival < pair.oldest then pair.oldest, pair.since = arrival, since end
  local rank = math.max(0, (kind_rank[r[7]] or 2) - steps(since))
  if not pair.id or rank < pair.head_rank or (rank == pair.head_rank and arrival < pair.arrival) then
    pair.id, pair.head_rank, pair.arrival, pair.arrived = id, rank, arrival, since
    pair.expected, pair.agent_weight, pair.key_weight = tonumber(r[10] or 0), tonumber(r[11] or 1), tonumber(r[12] or 1)
  end
end

for _, r in ipairs(rows) do
  local ms = barred(r)
  if ms > 0 then held = math.min(held or ms, ms) else add(r) end
end

-- Where each pair stands.
local service = {}

local function attained(whom)
  if not service[whom] then
    local r = redis.call('HMGET', ARGV[6] .. whom, 'ms', 'at_ms')
    service[whom] = tonumber(r[1] or 0) * 2 ^ (-math.max(0, now - tonumber(r[2] or 0)) / half_life)
  end
  return service[whom]
end

for _, pair in ipairs(line) do
  pair.aged = pair.level - steps(pair.since)
  pair.key_share = attained('key:' .. pair.key) / pair.key_weight
  pair.agent_share = attained('agent:' .. pair.whom) / pair.agent_weight
end

table.sort(line, function(a, b)
  if a.aged ~= b.aged then return a.aged < b.aged end
  if a.key_share ~= b.key_share then return a.key_share < b.key_share end
  if a.agent_share ~= b.agent_share then return a.agent_share < b.agent_share end
  return a.oldest < b.oldest
end)

-- For whom slots are kept.
local returning, back = {}, redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
if #back > 0 and redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now) > 0 then
  back = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
end
for i = 1, #back, 2 do
  local level, whom = string.match(back[i], '^(%d+):(.*)$')
  returning[#returning + 1] = {level = tonumber(level), whom = whom, left = tonumber(back[i + 1]) - now, name = back[i]}
  is_here(whom)
end
local share = math.floor(tonumber(ARGV[12]) * slots)
local urgent_left = share > 0 and background >= slots - share and redis.call('PTTL', KEYS[4]) or 0

local function kept(pair)
  if pair.level > urgent_end and urgent_left > 0 then return urgent_left end
  if (runs[pair.whom] or 0) < math.ceil(slots / agents_here) then return 0 end
  local left, seen, count = nil, {}, 0
  for _, one in ipairs(returning) do
    if one.level <= pair.level and not runs[one.whom] then
      left = math.min(left or one.left, one.left)
      if not seen[one.whom] then seen[one.whom], count = true, count + 1 end
    end
  end
  if count == 0 or slots - busy - 1 >= count then return 0 end
  return math.min(left, longest_wait(pair.level) - (now - pair.since))
end

local function charge(whom, ms)
  local key = ARGV[6] .. whom
  redis.call('HSET', key, 'ms', attained(whom) + ms, 'at_ms', now)
  redis.call('PEXPIRE', key, ARGV[15])
end

local function is_back(pair)
  for _, one in ipairs(returning) do
    if one.whom == pair.whom then redis.call('ZREM', KEYS[3], one.name) end
  end
  local key = ARGV[6] .. 'agent:' .. pair.whom
  local r = redis.call('HMGET', key, 'left_ms', 'gap_ms')
  if not r[1] then return end
  local gap = math.max(0, pair.arrived - tonumber(r[1]))
  local usual = tonumber(r[2] or gap)
  redis.call('HSET', key, 'gap_ms', usual + tonumber(ARGV[16]) * (gap - usual))
  redis.call('HDEL', key, 'left_ms')
end

local function take(pair)
  local key = ARGV[4] .. pair.id
  redis.call('ZREM', KEYS[1], pair.id)
  redis.call('HINCRBY', key, 'attempt', 1)
  redis.call('HSET', key, 'state', 'running', 'worker', ARGV[1], 'claim', ARGV[7], 'claimed_ms', now)
  redis.call('PEXPIRE', key, ARGV[3])
  redis.call('HSET', KEYS[2], pair.id, ARGV[2])
  charge('key:' .. pair.key, pair.expected)
  charge('agent:' .. pair.whom, pair.expected)
  is_back(pair)
  return answer(pair.id)
end

for _, pair in ipairs(line) do
  local ms = kept(pair)
  if ms <= 0 then return take(pair) end
  held = math.min(held or ms, ms)
end
held = math.max(1, math.ceil(math.min(held, tonumber(ARGV[14]))))
redis.call('SET', KEYS[5], ARGV[9], 'PX', held)
return {held}
