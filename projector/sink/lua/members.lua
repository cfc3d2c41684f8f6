-- Tells which projectors are alive, by the server's clock. Writes nothing.
--
-- KEYS[1]  the members, as join.lua keeps them

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')
