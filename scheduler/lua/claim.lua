-- Take the best job of a line for one attempt.
-- KEYS  1 line  2 running
-- ARGV  1 worker  2 incarnation  3 level weight  4 time to live of a running job (ms)  5 prefix of job keys
--       6 how many jobs of a level are looked at for the order inside one agent  7 prefix of wake streams' keys
--       8 token of this claim
-- Returns nil when nothing is there, else {id, attempt, level, agent, conversation, kind, queue_ms, reserve, body}.
-- Invariant: a job leaves the line and becomes running in one step; one that is cancelled, late or gone is dropped, and
-- so is one whose API process has died: nobody would read the answer.
-- Asked twice with the same token (a retried command) it answers with the same job.
-- Order: level, then arrival; inside the first one's agent and level: main, then subagent, then side.
-- The records' keys are made from names found in the line, so they cannot be passed in KEYS.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local rank = {main = 0, subagent = 1, side = 2}

local function sibling(head, score)
  local level_end = (math.floor(score / tonumber(ARGV[3])) + 1) * tonumber(ARGV[3])
  local mine = redis.call('HMGET', ARGV[5] .. head, 'agent', 'kind')
  if not mine[1] or mine[2] == 'main' then return head end
  local best, best_rank = head, rank[mine[2]] or 2
  local others = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', score),
    '(' .. string.format('%.0f', level_end), 'LIMIT', 0, tonumber(ARGV[6]))
  for _, id in ipairs(others) do
    local other = redis.call('HMGET', ARGV[5] .. id, 'agent', 'kind')
    if other[1] == mine[1] and (rank[other[2]] or 2) < best_rank then best, best_rank = id, rank[other[2]] end
  end
  return best
end

local function answer(id)
  local r = redis.call('HMGET', ARGV[5] .. id, 'attempt', 'level', 'agent', 'conversation', 'kind', 'arrival_ms',
    'reserve', 'body')
  return {id, tonumber(r[1]), tonumber(r[2]), r[3], r[4], r[5], now - tonumber(r[6]), tonumber(r[7]), r[8]}
end

for _, id in ipairs(redis.call('HKEYS', KEYS[2])) do
  if redis.call('HGET', ARGV[5] .. id, 'claim') == ARGV[8] then return answer(id) end
end

while true do
  local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if #head == 0 then return nil end
  local id = sibling(head[1], tonumber(head[2]))
  local key = ARGV[5] .. id
  redis.call('ZREM', KEYS[1], id)
  local r = redis.call('HMGET', key, 'state', 'deadline_ms', 'api')
  if r[1] == 'queued' and redis.call('EXISTS', ARGV[7] .. r[3]) == 0 then
    redis.call('DEL', key)
  elseif r[1] == 'queued' and tonumber(r[2]) >= now then
    redis.call('HINCRBY', key, 'attempt', 1)
    redis.call('HSET', key, 'state', 'running', 'worker', ARGV[1], 'claim', ARGV[8])
    redis.call('PEXPIRE', key, ARGV[4])
    redis.call('HSET', KEYS[2], id, ARGV[2])
    return answer(id)
  end
end
