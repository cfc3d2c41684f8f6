-- Says that a consumer is alive, and counts those that are, by the server's clock.
--
-- KEYS[1] the members: token -> milliseconds until which it counts (sorted set)
-- ARGV    the caller's token, milliseconds it is to count (0: it leaves)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return redis.call('ZCARD', KEYS[1])
