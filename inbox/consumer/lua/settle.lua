-- Remembers that events are handled, and acknowledges them: both or neither.
--
-- KEYS     the watermarks (hash), n streams, then one record per event
-- ARGV     the caller's token, group, how long to remember in milliseconds (0: not at all), n,
--          then per event its stream (1…), entry id, place, and seq to move its watermark to or ''
-- Returns  per event 1, or 0 if the claim was no longer the caller's

local token, group, kept, streams = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local answer, done = {}, {}

local function remembered(key, place, seq)
  if seq ~= '' then
    redis.call('HSET', KEYS[1], place, seq)
    redis.call('DEL', key)
  elseif kept == '0' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, VERSION .. '\0completed', 'PX', kept)
  end
end

for i = streams + 2, #KEYS do
  local base = 4 + (i - streams - 2) * 4
  local text = redis.pcall('GET', KEYS[i])
  local ours = type(text) == 'string' and held(text, token)
  answer[#answer + 1] = ours and 1 or 0
  if ours then
    remembered(KEYS[i], ARGV[base + 3], ARGV[base + 4])
    local number = tonumber(ARGV[base + 1])
    done[number] = done[number] or {}
    table.insert(done[number], ARGV[base + 2])
  end
end
for number, ids in pairs(done) do
  for first = 1, #ids, 1000 do
    redis.call('XACK', KEYS[1 + number], group, unpack(ids, first, math.min(first + 999, #ids)))
  end
end
return answer
