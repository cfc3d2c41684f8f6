-- Claims a letter for another try. Its record is free: the letter itself keeps others away.
--
-- KEYS     the record, the letter, the dead letters, the parked keys, the queue, the retries
-- ARGV     the caller's token, the lease in microseconds, event id, place
-- Returns  'claimed', the fence and the letter's fields; 'running' and milliseconds; 'refused' and
--          why; or 'gone' if there is nothing to do, and then nothing of it is left

local id, place = ARGV[3], ARGV[4]

local function gone()
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[3], id)
  leave_line(KEYS[4], KEYS[5], KEYS[6], place, id)
  return {'gone'}
end

if redis.call('EXISTS', KEYS[2]) == 0 then
  return gone()
end
local kept = claim(KEYS[1], ARGV[1], '', tonumber(ARGV[2]), clock())
if kept[1] == 'done' then
  return gone()  -- handled elsewhere
elseif kept[1] == 'running' then
  return {'running', milliseconds(tonumber(kept[2]))}
elseif kept[1] ~= 'claimed' then
  return {'refused', 'its record is ' .. kept[1] .. ': ' .. kept[2]}
end
return {'claimed', kept[2], redis.call('HGETALL', KEYS[2])}
