-- What every script begins with: the record as it stands, and the server's time.
--
-- A record is a hash: version, state, token, fence, fingerprint, payload (missing for None), and
-- the times started, heartbeat, completed, expires. Numbers are whole, times are microseconds.
-- Only the server's clock and the record decide; the key's own expiry just clears up behind them.

local KEY, VERSION = KEYS[1], 1
-- How long a key outlives the lease of its record, in milliseconds: a holder that is late may still
-- settle if nobody has taken over. And how long what was released remembers its fence.
local GRACE = 60000

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- For answers. Arguments of commands are written by the server, in 17 digits: enough for times.
local function whole(number)
  return string.format('%.0f', number)
end

local function milliseconds(microseconds)
  return math.ceil(microseconds / 1000)
end

local STATES = {running = true, completed = true, failed = true, released = true}

-- The record without its payload, or nil; and an answer for the caller if it cannot be read.
local function read()
  local found = redis.pcall('HMGET', KEY, 'version', 'state', 'token', 'fence', 'fingerprint',
    'started', 'heartbeat', 'expires')
  if found.err or not found[1] then  -- asked for only now: a call more in every script shows
    local kind = redis.call('TYPE', KEY).ok
    if kind == 'none' then
      return nil
    elseif kind ~= 'hash' then
      return nil, {'corrupt', 'a ' .. kind .. ' is stored at its key'}
    end
  end
  local version = tonumber(found[1])
  if version and version > VERSION then
    return nil, {'newer', found[1]}
  end
  local record = {state = found[2], token = found[3], fence = tonumber(found[4]),
    fingerprint = found[5], started = tonumber(found[6]), heartbeat = tonumber(found[7]),
    expires = tonumber(found[8])}
  if not (version and STATES[record.state] and record.token and record.fence and record.fingerprint
      and record.started and record.heartbeat and record.expires) then
    return nil, {'corrupt', 'fields are missing, or are not what they should be'}
  end
  return record
end

-- ARGV of every script of a holder begins with its token and fence.
local function owns(record)
  return record and record.token == ARGV[1] and record.fence == tonumber(ARGV[2])
end

-- What is left of a record that binds nobody any more: its fence.
local function bury(token)
  redis.call('HDEL', KEY, 'payload')
  redis.call('HSET', KEY, 'state', 'released', 'token', token, 'expires', clock())
  redis.call('PEXPIRE', KEY, GRACE)
end
