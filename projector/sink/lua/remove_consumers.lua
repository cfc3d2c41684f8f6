-- Removes consumers that are gone and have nothing pending. With something pending it would be lost
-- to the group for good. Should one come back, Redis makes it anew.
--
-- KEYS     the streams
-- ARGV     milliseconds since a consumer was seen last, the consumer of ordered lanes, which stays
-- Returns  per stream, how many were removed

local answer = {}
for i, key in ipairs(KEYS) do
  answer[i] = 0
  local groups = redis.call('TYPE', key)['ok'] == 'stream' and redis.call('XINFO', 'GROUPS', key)
  for _, info in ipairs(groups or {}) do
    local name
    for n = 1, #info, 2 do
      if info[n] == 'name' then
        name = info[n + 1]
      end
    end
    for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', key, name)) do
      local consumer = {}
      for n = 1, #flat, 2 do
        consumer[flat[n]] = flat[n + 1]
      end
      if consumer['pending'] == 0 and consumer['idle'] >= tonumber(ARGV[1])
          and consumer['name'] ~= ARGV[2] then
        redis.call('XGROUP', 'DELCONSUMER', key, name, consumer['name'])
        answer[i] = answer[i] + 1
      end
    end
  end
end
return answer
