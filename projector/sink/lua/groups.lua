-- How far the groups of a lane's streams have come, all at the same moment.
--
-- KEYS     the streams
-- Returns  per stream:  {length, then per group: name, last delivered id, oldest pending id or ''}
--          What is not a stream has no length and no groups: -1.

local answer = {}
for i, key in ipairs(KEYS) do
  local found = {-1}
  if redis.call('TYPE', key)['ok'] == 'stream' then
    found[1] = redis.call('XLEN', key)
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local group = {}
      for n = 1, #info, 2 do
        group[info[n]] = info[n + 1]
      end
      local oldest = ''
      if group['pending'] > 0 then
        oldest = redis.call('XPENDING', key, group['name'])[2] or ''
      end
      found[#found + 1] = group['name']
      found[#found + 1] = group['last-delivered-id']
      found[#found + 1] = oldest
    end
  end
  answer[i] = found
end
return answer
