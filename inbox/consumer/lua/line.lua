-- A library: the line that the events of a parked key wait in.

-- Takes an event out of it, and gives how many are left. Whoever takes out the last one unparks the
-- key. 0 also if it was not in line.
local function leave_line(parked, queue, retries, place, id)
  redis.call('SREM', retries, '#' .. id)
  if redis.call('LREM', queue, 1, id) == 0 then
    return 0
  end
  local left = redis.call('HINCRBY', parked, place, -1)
  if left <= 0 then
    redis.call('HDEL', parked, place)
    redis.call('SREM', retries, place)
  end
  return left
end
