-- Takes an event out of its stream for a group: as a dead letter, or behind one.
--
-- KEYS     the record, the stream, the dead letters (sorted set), the letter (hash), the parked keys
--          (hash), the queue of the event's key (list)
-- ARGV     what: 'park' its key, 'skip' to the next event, or 'wait' behind a letter; the caller's
--          token, group, entry id, event id, place, then the letter's fields and values
-- Returns  'ok'; 'lost' if the claim was no longer the caller's; 'free' if its key is not parked

local what, token, group, entry, id, place = unpack(ARGV, 1, 6)
if what == 'wait' then
  if redis.call('HEXISTS', KEYS[5], place) == 0 then
    return 'free'
  end
  local record = read(KEYS[1])
  if owns(record, token) and record.state == 'running' then
    redis.call('DEL', KEYS[1])
  end
else
  local record = read(KEYS[1])
  if not owns(record, token) or record.state ~= 'running' then
    return 'lost'
  end
  redis.call('DEL', KEYS[1])  -- the letter remembers it from now on
end
if not redis.call('ZSCORE', KEYS[3], id) then
  redis.call('HSET', KEYS[4], unpack(ARGV, 7))
  redis.call('ZADD', KEYS[3], whole(clock() / 1000), id)
  if what ~= 'skip' then
    redis.call('RPUSH', KEYS[6], id)
    redis.call('HINCRBY', KEYS[5], place, 1)
  end
end
redis.call('XACK', KEYS[2], group, entry)
return 'ok'
