-- Tells what is kept beside a lane's streams. Writes nothing.
--
-- KEYS     the lane's state, its lease, its @tops, its @lost
-- Returns  the server's clock (seconds, microseconds), the state, the lease's holder ('' for none)
--          and its milliseconds left, the keys of the streams, fields and values of @lost

local time = redis.call('TIME')
return {
  time[1], time[2],
  redis.call('GET', KEYS[1]) or '',
  redis.call('GET', KEYS[2]) or '', redis.call('PTTL', KEYS[2]),
  redis.call('HKEYS', KEYS[3]),
  redis.call('HGETALL', KEYS[4]),
}
