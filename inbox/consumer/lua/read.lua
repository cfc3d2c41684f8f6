-- Reads a lane's streams for a group, if the lane is the caller's. So a consumer that was away, and
-- whose lane somebody else has by now, takes no entries with it.
--
-- KEYS     the lane's lease, the streams
-- ARGV     the caller's token ('' does not ask for the lease), group, consumer, how many of each
--          stream, then per stream '>' for new entries, or the id after which to read pending ones
-- Returns  {'lost'} if the lane is another's, else {'ok', groups made anew, then per stream its
--          entries, and, if there are none, the last id that was delivered to the group; or, if
--          it cannot be read, '!' and the reason: something else may lie at one stream's key}

local token, group, consumer, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if token ~= '' and redis.call('GET', KEYS[1]) ~= token then
  return {'lost'}
end

local made = 0

local function entries_of(key, id)
  local command = {'XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', key, id}
  local found = redis.pcall(unpack(command))
  if found and found['err'] and string.match(found['err'], '^NOGROUP') then
    -- Redis was emptied, or nobody has been here yet.
    redis.call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
    made = made + 1
    found = redis.call(unpack(command))
  elseif found and found['err'] then
    return {}, '!' .. found['err']
  end
  return found and found[1] and found[1][2] or {}
end

local function delivered(key)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local fields = {}
    for i = 1, #info, 2 do
      fields[info[i]] = info[i + 1]
    end
    if fields['name'] == group then
      return fields['last-delivered-id']
    end
  end
end

local answer = {'ok', 0}
for i = 2, #KEYS do
  local entries, problem = entries_of(KEYS[i], ARGV[3 + i])
  answer[#answer + 1] = entries
  answer[#answer + 1] = problem or #entries == 0 and delivered(KEYS[i]) or ''
end
answer[2] = made
return answer
