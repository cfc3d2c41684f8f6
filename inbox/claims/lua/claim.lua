-- ARGV    the token, the fingerprint, the lease in microseconds
-- Returns 'claimed', the fence, and 1 if an earlier holder's lease ran out
--         'mismatch' and the other fingerprint
--         'running' and the microseconds that are left of the lease
--         'done' and the record

return claim(KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), clock())
