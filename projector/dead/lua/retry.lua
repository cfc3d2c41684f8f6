-- Marks a letter to be worked off: with the whole queue of its key, or, where it parks none, alone.
-- Whoever has the lane looks for marks when it renews its lease.
--
-- KEYS     the letter, the queue of its key, the retries (set)
-- ARGV     event id, place
-- Returns  'gone', 'marked', or 'already'

local id, place = ARGV[1], ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'gone'
end
if not redis.call('LPOS', KEYS[2], id) then
  place = '#' .. id
end
return redis.call('SADD', KEYS[3], place) == 1 and 'marked' or 'already'
