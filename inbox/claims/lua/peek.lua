-- Returns 'record' and the record, or 'none'

local record, unreadable = read(KEYS[1])
if unreadable then return unreadable end
if absent(record, clock()) then return {'none'} end
return {'record', text_of(record)}
