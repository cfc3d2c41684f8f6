-- Gives a lane back, if it is still the caller's.
--
-- KEYS[1] the lease   ARGV[1] the caller's token

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
