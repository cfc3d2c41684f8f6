-- A library: whether a consumer is at a letter right now.
--
-- A record is one text, its fields apart by NUL: version, state, token, fence, fingerprint, started,
-- heartbeat, expires, … Times are microseconds by the server's clock, which alone decides.

local RUNNING = '^%d+%zrunning%z[^%z]*%z%d+%z[^%z]*%z%d+%z%d+%z(%d+)%z'

-- For how many milliseconds its claim holds, if it is not renewed; 0 if nobody has one.
local function running(record)
  local text = redis.pcall('GET', record)
  local expires = type(text) == 'string' and string.match(text, RUNNING)
  if not expires then
    return 0
  end
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return math.max(math.ceil((tonumber(expires) - now) / 1000), 0)
end
