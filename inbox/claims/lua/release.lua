-- ARGV    the holder's token and fence
-- Returns 'yes' or 'no'

return release(KEYS[1], ARGV[1], tonumber(ARGV[2]), clock())
