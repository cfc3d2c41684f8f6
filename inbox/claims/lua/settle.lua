-- ARGV    the holder's token and fence, the state, the time to live in microseconds,
--         and the payload, left out for None
-- Returns 'applied' or 'lost'

local record, unreadable = read()
if unreadable then return unreadable end
if not owns(record) or record.state == 'released' then return {'lost'} end
local now = clock()
if record.state ~= 'running' then  -- sent again: the first outcome stands
  return {record.expires > now and 'applied' or 'lost'}
end
local ttl = tonumber(ARGV[4])
local expires = now + ttl
if ARGV[5] then
  redis.call('HSET', KEY, 'state', ARGV[3], 'completed', now, 'expires', expires,
    'payload', ARGV[5])
else
  redis.call('HSET', KEY, 'state', ARGV[3], 'completed', now, 'expires', expires)
end
redis.call('PEXPIRE', KEY, milliseconds(ttl) + 1)  -- the record goes first: it decides
return {'applied'}
