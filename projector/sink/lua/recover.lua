-- Hands a page of pending entries from consumers that are dead to one that lives.
--
-- KEYS     the stream, the lease of the lane's consumer in the group
-- ARGV     group, milliseconds, the id to begin at, the consumer of ordered lanes, how many live
--          consumers follow (-1: those live that were seen within the milliseconds), their names
-- Returns  {the id to go on from or '', who got them, ids that are gone from the stream,
--          then per entry that was handed over:  id, milliseconds idle, from whom}
--
-- An ordered lane recovers by takeover: with its lease live nothing is touched, and its consumer's
-- entries never. JUSTID: it is no delivery, so the counter stays.

local group, idle, begin, lane_consumer = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local nothing = {'', '', {}}
if redis.call('EXISTS', KEYS[2]) == 1 or redis.call('TYPE', KEYS[1])['ok'] ~= 'stream' then
  return nothing
end
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], group)
if consumers['err'] then  -- the group is gone
  return nothing
end

local live = {}
for i = 6, #ARGV do
  live[ARGV[i]] = true
end
local heir, least
for _, flat in ipairs(consumers) do
  local consumer = {}
  for i = 1, #flat, 2 do
    consumer[flat[i]] = flat[i + 1]
  end
  local name = consumer['name']
  if ARGV[5] == '-1' and consumer['idle'] < idle then
    live[name] = true
  end
  if live[name] and name ~= lane_consumer and (not least or consumer['pending'] < least) then
    heir, least = name, consumer['pending']
  end
end
if not heir then
  return nothing
end

local page = redis.call('XPENDING', KEYS[1], group, 'IDLE', idle, begin, '+', 100)
local answer = {#page == 100 and '(' .. page[100][1] or '', heir, {}}
for _, entry in ipairs(page) do
  local id, owner = entry[1], entry[2]
  if not live[owner] and owner ~= lane_consumer then
    if #redis.call('XRANGE', KEYS[1], id, id) == 0 then
      redis.call('XACK', KEYS[1], group, id)  -- nobody can ever handle it
      table.insert(answer[3], id)
    else
      redis.call('XCLAIM', KEYS[1], group, heir, idle, id, 'JUSTID')
      answer[#answer + 1] = id
      answer[#answer + 1] = entry[3]
      answer[#answer + 1] = owner
    end
  end
end
return answer
