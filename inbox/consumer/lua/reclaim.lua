-- Makes the caller's what other consumers of a group have left lying. JUSTID: it is no delivery.
--
-- KEYS     one stream
-- ARGV     group, the caller's name, milliseconds, the id to begin at
-- Returns  the id to go on from, or '' at the end; how many entries are gone from the stream

local found = redis.pcall('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', 100,
  'JUSTID')
if found['err'] then
  return {'', 0}
end
local gone = found[3] and #found[3] or 0
return {found[1] == '0-0' and '' or found[1], gone}
