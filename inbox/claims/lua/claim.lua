-- ARGV    the token, the fingerprint, the lease in microseconds
-- Returns 'claimed', the fence, and 1 if an earlier holder's lease ran out
--         'mismatch' and the other fingerprint
--         'running' and the microseconds that are left of the lease
--         'done' and the record

local record, unreadable
if redis.call('EXISTS', KEY) == 1 then  -- mostly not, and this is cheaper to find out
  record, unreadable = read()
end
if unreadable then return unreadable end
local token, fingerprint, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = clock()
local expires = now + lease

local function keep()
  redis.call('PEXPIRE', KEY, milliseconds(lease) + GRACE)
end

-- The same request again, after its answer was lost: the same claim, not a second owner.
if record and record.state == 'running' and record.token == token
    and record.fingerprint == fingerprint then
  redis.call('HSET', KEY, 'heartbeat', now, 'expires', expires)
  keep()
  return {'claimed', whole(record.fence), '0'}
end

if not record or record.expires <= now then
  -- Not below the clock: where nothing remembers the last fence, time has moved on since.
  local fence = math.max(record and record.fence + 1 or 1, now)
  local taken_over = record and record.state == 'running'
  if record then
    redis.call('DEL', KEY)
  end
  redis.call('HSET', KEY, 'version', VERSION, 'state', 'running', 'token', token,
    'fence', fence, 'fingerprint', fingerprint, 'started', now, 'heartbeat', now,
    'expires', expires)
  keep()
  return {'claimed', whole(fence), taken_over and '1' or '0'}
end

-- Before the state, so that a wrong payload fails at once and not only when the first is done.
if record.fingerprint ~= fingerprint then
  return {'mismatch', record.fingerprint}
elseif record.state == 'running' then
  return {'running', whole(record.expires - now)}
end
return {'done', redis.call('HGETALL', KEY)}
