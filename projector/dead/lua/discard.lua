-- Removes a letter for good. If its key waited for it, what is behind it goes on.
--
-- KEYS     the record, the letter, the dead letters (sorted set), the parked keys (hash), the queue
--          of its key (list), the retries (set), the watermarks (hash)
-- ARGV     event id, place, milliseconds to remember that the event is done with
-- Returns  {'gone'}; {'running', milliseconds} if a consumer is at it, and nothing was done; or
--          {'done', how many events of its key are left, or -1 if its key did not wait for it}

local id, place, kept = ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'gone'}
end
local busy = running(KEYS[1])
if busy > 0 then
  return {'running', busy}
end

-- A group that goes by seq would take the next event of the key for one behind a hole.
local seq = tonumber(redis.call('HGET', KEYS[2], 'sequence') or '')
local last = tonumber(redis.call('HGET', KEYS[7], place) or '')
if seq and last and seq > last then
  redis.call('HSET', KEYS[7], place, redis.call('HGET', KEYS[2], 'sequence'))
end
-- Nor must it come back if it is published again: the record says what a settled one says.
redis.call('SET', KEYS[1], '1\0completed', 'PX', kept)
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[3], id)
redis.call('SREM', KEYS[6], '#' .. id)

local first = redis.call('LINDEX', KEYS[5], 0) == id
if redis.call('LREM', KEYS[5], 1, id) == 0 then
  return {'done', -1}
end
local left = redis.call('HINCRBY', KEYS[4], place, -1)
if left <= 0 then
  redis.call('HDEL', KEYS[4], place)
  redis.call('SREM', KEYS[6], place)
elseif first then
  redis.call('SADD', KEYS[6], place)
end
return {'done', left}
