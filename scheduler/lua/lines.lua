-- Read the lines of workers, what they run, and the service that those who ask there have had. Writes nothing.
-- KEYS  for each worker: line, running, urgent; then the places of the promises and the cluster's counts
-- ARGV  1 prefix of job keys  2 prefix of the keys of attained service  3 most jobs of a line that are looked at
--       then those whose service is asked for besides, as `key:<name>` or `agent:<key name>:<agent>`
-- Returns a JSON text: {now: ms, promised: jobs, moved: jobs, workers: [{queued: jobs, urgent_ms: ms left or less than 0,
-- waiting: [[id, level, key, agent, kind, arrival, arrival_ms, expected_ms, agent_weight, key_weight, new_tokens,
-- length_mu, length_sigma]], running: [[id, level, key, agent, claimed_ms, new_tokens, length_mu, length_sigma]]}],
-- service: {whom: [ms, at_ms]}}. Empty lists may come as empty objects; what a record lacks is false.
-- Keys of records and of service are made from names found in the lines, so they cannot be passed in KEYS.
local time = redis.call('TIME')
local service = {}

local function look_up(whom)
  if service[whom] == nil then service[whom] = redis.call('HMGET', ARGV[2] .. whom, 'ms', 'at_ms') end
end

local function look_up_both(key, agent)
  look_up('key:' .. (key or ''))
  look_up('agent:' .. (key or '') .. ':' .. (agent or ''))
end

local function waiting(line)
  local found = {}
  for _, id in ipairs(redis.call('ZRANGE', line, 0, tonumber(ARGV[3]) - 1)) do
    local r = redis.call('HMGET', ARGV[1] .. id, 'level', 'key', 'agent', 'kind', 'arrival', 'arrival_ms', 'expected_ms',
      'agent_weight', 'key_weight', 'new_tokens', 'length_mu', 'length_sigma')
    if r[1] and r[3] then
      table.insert(r, 1, id)
      found[#found + 1] = r
      look_up_both(r[3], r[4])
    end
  end
  return found
end

local function running(key)
  local found = {}
  for _, id in ipairs(redis.call('HKEYS', key)) do
    local r = redis.call('HMGET', ARGV[1] .. id, 'level', 'key', 'agent', 'claimed_ms', 'new_tokens', 'length_mu',
      'length_sigma')
    table.insert(r, 1, id)
    found[#found + 1] = r
    if r[4] then look_up_both(r[3], r[4]) end
  end
  return found
end

local workers = {}
for i = 1, #KEYS - 2, 3 do
  workers[#workers + 1] = {queued = redis.call('ZCARD', KEYS[i]), urgent_ms = redis.call('PTTL', KEYS[i + 2]),
    waiting = waiting(KEYS[i]), running = running(KEYS[i + 1])}
end
for i = 4, #ARGV do look_up(ARGV[i]) end
return cjson.encode({now = time[1] * 1000 + math.floor(time[2] / 1000), workers = workers, service = service,
  promised = redis.call('ZCARD', KEYS[#KEYS - 1]), moved = tonumber(redis.call('HGET', KEYS[#KEYS], 'moved') or 0)})
