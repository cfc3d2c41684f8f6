-- Claims a letter for another try. Its record is free: the letter itself keeps others away.
--
-- KEYS     the record, the letter
-- ARGV     the caller's token, the lease in microseconds
-- Returns  'claimed', the fence and the letter's fields; 'running' and milliseconds; or 'gone'

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'gone'}
end
local kept = claim(KEYS[1], ARGV[1], '', tonumber(ARGV[2]), clock())
if kept[1] == 'running' then
  return {'running', milliseconds(tonumber(kept[2]))}
end
return {'claimed', kept[2], redis.call('HGETALL', KEYS[2])}
