-- Reads letters. Writes nothing.
--
-- KEYS     the letters
-- ARGV     the fields that are wanted
-- Returns  per letter the values of these fields; nothing for a letter that is gone

local answer = {}
for i, key in ipairs(KEYS) do
  answer[i] = redis.call('EXISTS', key) == 1 and redis.call('HMGET', key, unpack(ARGV)) or {}
end
return answer
