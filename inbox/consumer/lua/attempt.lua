-- Counts another attempt at an event, right before it begins.
--
-- KEYS     the record
-- ARGV     the caller's token
-- Returns  the number of the attempt, or 0 if the claim is no longer the caller's

local record = read(KEYS[1])
if not owns(record, ARGV[1]) or record.state ~= 'running' then
  return 0
end
record.attempts = record.attempts + 1
write(KEYS[1], record, redis.call('PTTL', KEYS[1]))
return record.attempts
