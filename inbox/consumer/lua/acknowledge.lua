-- Acknowledges entries whose events were handled before.
--
-- KEYS     n streams
-- ARGV     group, then per entry its stream (1…) and id

for i = 2, #ARGV, 2 do
  redis.call('XACK', KEYS[tonumber(ARGV[i])], ARGV[1], ARGV[i + 1])
end
