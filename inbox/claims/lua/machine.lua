-- The claim machine in Redis: the same transitions as inbox/claims/claim.py, by the server's clock.
--
-- A record is one text, its fields apart by NUL:
--   version, state, token, fence, fingerprint, started, heartbeat, expires, completed, attempts,
--   and the payload behind a '+', or '-' for None
-- Numbers are whole, times are microseconds. A message that is done keeps version and state only:
-- there may be one for each event of a week.
-- Only the server's clock and the record decide; the key's own expiry just clears up behind them.

local VERSION = 1
-- How long a key outlives the lease of its record, in milliseconds: a holder that is late may still
-- settle if nobody has taken over. And how long what was released remembers its fence.
local GRACE = 60000
local FOREVER = 2 ^ 53

local STATES = {running = true, completed = true, failed = true, released = true}
local FIELDS = '^(%d+)%z(%l+)%z([^%z]*)%z(%d+)%z([^%z]*)%z(%d+)%z(%d+)%z(%d+)%z(%d*)%z(%d+)%z([+-])'

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function whole(number)
  return string.format('%.0f', number)
end

local function milliseconds(microseconds)
  return whole(math.ceil(microseconds / 1000))
end

local function text_of(r)
  return table.concat({VERSION, r.state, r.token, whole(r.fence), r.fingerprint, whole(r.started),
    whole(r.heartbeat), whole(r.expires), r.completed and whole(r.completed) or '',
    whole(r.attempts), r.payload and '+' .. r.payload or '-'}, '\0')
end

-- The record at a key, or nil; and an answer for the caller if it cannot be read.
local function read(key)
  local text = redis.pcall('GET', key)
  if not text then
    return nil
  elseif type(text) == 'table' then
    return nil, {'corrupt', 'something else is stored at its key'}
  end
  local version, rest = string.match(text, '^(%d+)%z(.*)$')
  if not version then
    return nil, {'corrupt', 'it is no record'}
  elseif tonumber(version) > VERSION then
    return nil, {'newer', version}
  elseif rest == 'completed' or rest == 'failed' then
    return {state = rest, token = '', fence = 0, fingerprint = '', started = 0, heartbeat = 0,
      expires = FOREVER, attempts = 0}
  end
  local _, last, _, state, token, fence, fingerprint, started, heartbeat, expires, completed,
    attempts, sign = string.find(text, FIELDS)
  if not (last and STATES[state]) then
    return nil, {'corrupt', 'fields are missing, or are not what they should be'}
  end
  return {
    state = state,
    token = token,
    fence = tonumber(fence),
    fingerprint = fingerprint,
    started = tonumber(started),
    heartbeat = tonumber(heartbeat),
    expires = tonumber(expires),
    completed = tonumber(completed),
    attempts = tonumber(attempts),
    payload = sign == '+' and string.sub(text, last + 1) or nil,
  }
end

local function write(key, record, kept)
  redis.call('SET', key, text_of(record), 'PX', kept)
end

-- Nothing binds the key: the record decides, whether or not somebody has swept it away.
local function absent(record, now)
  return not record or record.expires <= now
end

-- A record that nobody has held before.
local function first(token, fingerprint, lease, now)
  return {
    state = 'running',
    token = token,
    -- Not below the clock: where nothing remembers the last fence, time has moved on since.
    fence = now,
    fingerprint = fingerprint,
    started = now,
    heartbeat = now,
    expires = now + lease,
    attempts = 1,
  }
end

-- Gives the new record, and whether an earlier holder's lease ran out. Only where nothing binds the key.
local function take(key, record, token, fingerprint, lease, now)
  local fresh = first(token, fingerprint, lease, now)
  local taken_over = record and record.state == 'running'
  if record then
    fresh.fence = math.max(record.fence + 1, now)
  end
  if taken_over or record and record.state == 'released' then
    fresh.attempts = record.attempts + 1
  end
  write(key, fresh, milliseconds(lease) + GRACE)
  return fresh, taken_over
end

local function claim(key, token, fingerprint, lease, now)
  local record, unreadable = read(key)
  if unreadable then
    return unreadable
  elseif record and record.state == 'running' and record.token == token
      and record.fingerprint == fingerprint then
    -- The same request again, after its answer was lost: the same claim, not a second owner.
    record.heartbeat, record.expires = now, now + lease
    write(key, record, milliseconds(lease) + GRACE)
    return {'claimed', whole(record.fence), '0'}
  elseif absent(record, now) then
    local fresh, taken_over = take(key, record, token, fingerprint, lease, now)
    return {'claimed', whole(fresh.fence), taken_over and '1' or '0'}
  -- Before the state, so that a wrong payload fails at once and not only when the first is done.
  elseif record.fingerprint ~= fingerprint then
    return {'mismatch', record.fingerprint}
  elseif record.state ~= 'running' then
    return {'done', text_of(record)}
  end
  return {'running', whole(record.expires - now)}
end

-- Whether a text is the record of a claim that the token holds, without taking it apart.
local function held(text, token)
  local head = VERSION .. '\0running\0' .. token .. '\0'
  return text and string.sub(text, 1, #head) == head
end

-- Whose it is. Fences are only compared where the caller knows one.
local function owns(record, token, fence)
  return record and record.token == token and (not fence or record.fence == fence)
end

local function renew(key, token, fence, lease, now)
  local record, unreadable = read(key)
  if unreadable then
    return unreadable
  elseif not owns(record, token, fence) or record.state ~= 'running' then
    return {'no'}
  end
  record.heartbeat, record.expires = now, now + lease
  write(key, record, milliseconds(lease) + GRACE)
  return {'yes'}
end

local function settle(key, token, fence, state, ttl, payload, now)
  local record, unreadable = read(key)
  if unreadable then
    return unreadable
  elseif not owns(record, token, fence) or record.state == 'released' then
    return {'lost'}
  elseif record.state ~= 'running' then  -- sent again: the first outcome stands
    return {record.expires > now and 'applied' or 'lost'}
  end
  record.state, record.completed, record.expires, record.payload = state, now, now + ttl, payload
  write(key, record, milliseconds(ttl) + 1)  -- the record goes first: it decides
  return {'applied'}
end

-- What is left of a record that binds nobody any more: its fence, and how often it was tried.
local function bury(key, record, token, now)
  record.state, record.token, record.expires, record.payload = 'released', token, now, nil
  write(key, record, GRACE)
end

local function release(key, token, fence, now)
  local record, unreadable = read(key)
  if unreadable then
    return unreadable
  elseif not owns(record, token, fence) then
    return {'no'}
  elseif record.state == 'running' then
    bury(key, record, record.token, now)
  elseif record.state ~= 'released' then
    return {'no'}
  end
  return {'yes'}
end
