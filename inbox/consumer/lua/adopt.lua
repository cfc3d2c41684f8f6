-- Makes every pending entry of a group the lane owner's, whoever it was delivered to: what another
-- mode of consuming, or another client, has left behind is replayed too.
--
-- KEYS     the lane's lease, one stream
-- ARGV     the caller's token, group, consumer, the id to begin at
-- Returns  the id to go on from, or '' at the end

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return ''
end
local found = redis.pcall('XPENDING', KEYS[2], ARGV[2], ARGV[4], '+', 1000)
if found['err'] or #found == 0 then
  return ''
end
local others = {}
for _, entry in ipairs(found) do
  if entry[2] ~= ARGV[3] then
    others[#others + 1] = entry[1]
  end
end
if #others > 0 then
  others[#others + 1] = 'JUSTID'  -- no delivery: the counter stays
  redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, unpack(others))
end
if #found < 1000 then
  return ''
end
return '(' .. found[#found][1]
