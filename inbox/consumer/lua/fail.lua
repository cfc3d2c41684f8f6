-- A letter failed again: it stays where it is, with what went wrong, until it is retried again.
--
-- KEYS     the record, the letter, the retries
-- ARGV     the caller's token, event id, place, then fields and values
-- Returns  1, or 0 if the claim was no longer the caller's

local record = read(KEYS[1])
if not owns(record, ARGV[1]) or record.state ~= 'running' then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[3], ARGV[3], '#' .. ARGV[2])
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HSET', KEYS[2], unpack(ARGV, 4))
end
return 1
