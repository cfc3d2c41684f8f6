-- Takes or renews a lane's lease, and tells what the lane's state is.
--
-- KEYS[1] the lease   KEYS[2] the lane's state
-- ARGV    the caller's token, milliseconds
-- Returns the holder's token, and the stored state ('' for none)

local holder = redis.call('GET', KEYS[1])
if not holder or holder == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  holder = ARGV[1]
end
return {holder, redis.call('GET', KEYS[2]) or ''}
