-- Says that an entry is still being worked on, unless somebody else has it by now.
--
-- KEYS     the stream
-- ARGV     group, the caller's name, the entry's id
-- Returns  1, or 0 if the entry is no longer the caller's

local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not found or found[2] ~= ARGV[2] then
  return 0
end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID')  -- no delivery
return 1
