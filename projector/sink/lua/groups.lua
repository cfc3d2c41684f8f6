-- What the streams of a lane hold and how far their groups have come, all at the same moment.
-- Writes nothing.
--
-- KEYS     the streams
-- ARGV     milliseconds after which nobody is taken to work on a pending entry any more
-- Returns  per stream:  {length, first id or '', last id, entries ever added or -1, highest id that
--          was deleted or '0-0', then per group:  {name, last delivered id, oldest pending id or '',
--          entries ever read or -1, the id to be delivered next or '', pending ids that nobody works
--          on and that are gone from the stream, 100 at most}}
--          What is not a stream has no length and no groups: {-1}. Servers before 7.0 do not count.

local function pairs_of(flat)
  local found = {}
  for i = 1, #flat, 2 do
    found[flat[i]] = flat[i + 1]
  end
  return found
end

local function gone(key, name, first)
  local ids = {}
  local upto = first == '' and '+' or '(' .. first
  for i, entry in ipairs(redis.call('XPENDING', key, name, 'IDLE', ARGV[1], '-', upto, 100)) do
    ids[i] = entry[1]
  end
  return ids
end

local function group_of(key, first, info)
  local name, delivered, oldest = info['name'], info['last-delivered-id'], ''
  if info['pending'] > 0 then
    oldest = redis.call('XPENDING', key, name)[2] or ''
  end
  local following = redis.call('XRANGE', key, '(' .. delivered, '+', 'COUNT', 1)[1]
  return {
    name, delivered, oldest,
    info['entries-read'] or -1,
    following and following[1] or '',
    oldest ~= '' and gone(key, name, first) or {},
  }
end

local function stream_of(key)
  local info = pairs_of(redis.call('XINFO', 'STREAM', key))
  local first = info['first-entry'] and info['first-entry'][1] or ''
  local found = {
    info['length'], first, info['last-generated-id'],
    info['entries-added'] or -1, info['max-deleted-entry-id'] or '0-0',
  }
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    found[#found + 1] = group_of(key, first, pairs_of(group))
  end
  return found
end

local answer = {}
for i, key in ipairs(KEYS) do
  answer[i] = redis.call('TYPE', key)['ok'] == 'stream' and stream_of(key) or {-1}
end
return answer
