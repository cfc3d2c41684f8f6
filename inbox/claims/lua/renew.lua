-- ARGV    the holder's token and fence, the lease in microseconds
-- Returns 'yes' or 'no'

local record, unreadable = read()
if unreadable then return unreadable end
if not owns(record) or record.state ~= 'running' then return {'no'} end
local now, lease = clock(), tonumber(ARGV[3])
redis.call('HSET', KEY, 'heartbeat', now, 'expires', now + lease)
redis.call('PEXPIRE', KEY, milliseconds(lease) + GRACE)
return {'yes'}
