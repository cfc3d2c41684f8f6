-- Counts the letters of some groups on a lane. Writes nothing.
--
-- KEYS     per group its dead letters (sorted set), its parked keys (hash)
-- Returns  the server's clock in milliseconds, then per group: letters, parked keys, events in
--          their queues, and when the oldest letter came, in milliseconds, or ''

local time = redis.call('TIME')
local answer = {time[1] * 1000 + math.floor(time[2] / 1000)}
for i = 1, #KEYS, 2 do
  local queued = 0
  for _, count in ipairs(redis.call('HVALS', KEYS[i + 1])) do
    queued = queued + tonumber(count)
  end
  answer[#answer + 1] = redis.call('ZCARD', KEYS[i])
  answer[#answer + 1] = redis.call('HLEN', KEYS[i + 1])
  answer[#answer + 1] = queued
  answer[#answer + 1] = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2] or ''
end
return answer
