-- Removes what every group has acknowledged from the streams of a lane.
--
-- KEYS     the streams
-- ARGV     about how many entries to remove at most, then per stream:  n, n groups that must be there
-- Returns  per stream, how many entries were removed
--
-- Up to the oldest entry that a group has not acknowledged, and never past it. Whole nodes of the
-- stream only, which costs next to nothing. A stream that nobody reads, or on which a group that is
-- known is missing, keeps everything. Trimming changes neither the stream's last id nor the groups.

local most = tonumber(ARGV[1])
local argument = 2
local removed, answer = 0, {}

local function older(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if #a_ms ~= #b_ms then return #a_ms < #b_ms end
  if a_ms ~= b_ms then return a_ms < b_ms end
  if #a_seq ~= #b_seq then return #a_seq < #b_seq end
  return a_seq < b_seq
end

-- The lowest id that has to stay, or nil if everything has to.
local function bound(key, missing)
  local lowest
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local group = {}
    for i = 1, #info, 2 do
      group[info[i]] = info[i + 1]
    end
    local needed = group['last-delivered-id']
    if group['pending'] > 0 then
      -- Usually below what was delivered last; above it after an XGROUP SETID to start over.
      local oldest = redis.call('XPENDING', key, group['name'])[2]
      if older(oldest, needed) then
        needed = oldest
      end
    end
    if not lowest or older(needed, lowest) then
      lowest = needed
    end
    missing[group['name']] = nil
  end
  return not next(missing) and lowest or nil
end

for i, key in ipairs(KEYS) do
  local missing = {}
  local count = tonumber(ARGV[argument])
  for g = 1, count do
    missing[ARGV[argument + g]] = true
  end
  argument = argument + 1 + count
  answer[i] = 0
  if removed < most and redis.call('TYPE', key)['ok'] == 'stream' then
    local lowest = bound(key, missing)
    if lowest then
      answer[i] = redis.call('XTRIM', key, 'MINID', '~', lowest, 'LIMIT', most)
      removed = removed + answer[i]
    end
  end
end
return answer
