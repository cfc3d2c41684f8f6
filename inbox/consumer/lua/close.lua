-- A letter was handled at last.
--
-- KEYS     the record, the letter, the dead letters, the parked keys, the queue, the retries, the
--          watermarks
-- ARGV     the caller's token, event id, place, how long to remember in milliseconds (0: not at
--          all), the seq to move the watermark to or ''
-- Returns  how many events of the key are left, or -1 if the claim was no longer the caller's

local record = read(KEYS[1])
if not owns(record, ARGV[1]) or record.state ~= 'running' then
  return -1
end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[7], ARGV[3], ARGV[5])
end
if ARGV[4] == '0' or ARGV[5] ~= '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], VERSION .. '\0completed', 'PX', ARGV[4])
end
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[2])
return leave_line(KEYS[4], KEYS[5], KEYS[6], ARGV[3], ARGV[2])
