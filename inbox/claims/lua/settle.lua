-- ARGV    the holder's token and fence, the state, the time to live in microseconds,
--         and the payload, left out for None
-- Returns 'applied' or 'lost'

return settle(KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], clock())
