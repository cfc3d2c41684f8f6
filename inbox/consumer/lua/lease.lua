-- Takes or renews a lane for a consumer of a group, and tells which parked keys are to be retried.
--
-- KEYS     the lease, the retries (set)
-- ARGV     the caller's token, milliseconds
-- Returns  1 and the places to retry if the lane is the caller's now, else 0

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, unpack(redis.call('SMEMBERS', KEYS[2]))}
