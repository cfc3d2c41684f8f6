-- Claims one pending entry that was idle for long, as a delivery.
--
-- KEYS     the stream
-- ARGV     group, the caller's name, milliseconds, the entry's id
-- Returns  {'claimed', fields and values in turn}; {'gone'} if it is no longer in the stream, and then
--          it is no longer pending either; {'busy'} if it was acknowledged, or taken by another

local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], ARGV[4], 1)[1]
if not found or found[3] < tonumber(ARGV[3]) then
  return {'busy'}
end
if #redis.call('XRANGE', KEYS[1], ARGV[4], ARGV[4]) == 0 then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[4])
  return {'gone'}
end
local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[4])[1]
return {'claimed', entry[2]}
