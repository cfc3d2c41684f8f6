-- Returns 'yes' or 'no'

local record, unreadable = read(KEYS[1])
if unreadable then
  redis.call('DEL', KEYS[1])
  return {'yes'}
end
local now = clock()
if absent(record, now) then return {'no'} end
-- Nobody's: its holder must not think that it was the one who gave it back.
bury(KEYS[1], record, '', now)
return {'yes'}
