-- Renews or gives back a batch of claims.
--
-- KEYS     the records
-- ARGV     the caller's token, the lease in microseconds (0: give back), and, when given back, how
--          many attempts to take off again: those that have not begun do not count
-- Returns  per record 1, or 0 if it was no longer the caller's

local token, lease, unbegun, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), clock()
local answer = {}
for i, key in ipairs(KEYS) do
  local record = read(key)
  local ours = owns(record, token) and record.state == 'running'
  answer[i] = ours and 1 or 0
  if ours and lease > 0 then
    record.heartbeat, record.expires = now, now + lease
    write(key, record, milliseconds(lease) + GRACE)
  elseif ours then
    record.attempts = record.attempts - unbegun
    bury(key, record, token, now)
  end
end
return answer
