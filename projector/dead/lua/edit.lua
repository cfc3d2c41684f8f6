-- Gives a letter other data. The first edit keeps what was emitted.
--
-- KEYS     the record, the letter
-- ARGV     the data that the editor saw, the new data, the time as text
-- Returns  {'gone'}; {'running', milliseconds} if a consumer is at it; {'changed'} if the data is
--          not what the editor saw; or {'done'}

if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'gone'}
end
local busy = running(KEYS[1])
if busy > 0 then
  return {'running', busy}
end
local data = redis.call('HGET', KEYS[2], 'data') or ''
if data ~= ARGV[1] then
  return {'changed'}
end
redis.call('HSETNX', KEYS[2], '@original', data)
redis.call('HSET', KEYS[2], 'data', ARGV[2], '@edited', ARGV[3])
return {'done'}
