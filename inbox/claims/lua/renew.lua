-- ARGV    the holder's token and fence, the lease in microseconds
-- Returns 'yes' or 'no'

return renew(KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), clock())
