-- ARGV    the holder's token and fence
-- Returns 'yes' or 'no'

local record, unreadable = read()
if unreadable then return unreadable end
if not owns(record) then return {'no'} end
if record.state == 'running' then
  bury(record.token)
elseif record.state ~= 'released' then
  return {'no'}
end
return {'yes'}
