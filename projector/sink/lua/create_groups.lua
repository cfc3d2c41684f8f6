-- Creates consumer groups at 0 on the streams that exist, where they are missing.
--
-- KEYS  the streams
-- ARGV  per stream:  n, n group names

local argument = 1
for i = 1, #KEYS do
  local count = tonumber(ARGV[argument])
  if redis.pcall('TYPE', KEYS[i])['ok'] == 'stream' then
    for g = 1, count do
      redis.pcall('XGROUP', 'CREATE', KEYS[i], ARGV[argument + g], '0')
    end
  end
  argument = argument + 1 + count
end
