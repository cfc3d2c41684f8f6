-- Returns 'yes' or 'no'

local record, unreadable = read()
if unreadable then
  redis.call('DEL', KEY)
  return {'yes'}
end
if not record or record.expires <= clock() then return {'no'} end
bury('')  -- nobody's: its holder must not think that it was the one who gave it back
return {'yes'}
