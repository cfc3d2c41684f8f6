-- Returns 'record' and the record, or 'none'

local record, unreadable = read()
if unreadable then return unreadable end
if not record or record.expires <= clock() then return {'none'} end
return {'record', redis.call('HGETALL', KEY)}
