-- Tells what `projector status` shows of a lane's streams, without their entries. Writes nothing.
--
-- KEYS     the streams
-- ARGV     how many undelivered entries, and how many bytes of them, to count at most per group
-- Returns  JSON, one object per stream: kind, and for a stream its length, memory, ids and groups.
--          An error instead of an answer is told in `problem`.
--
-- Undelivered entries are counted where the server's own counters may lie: they do once unread
-- entries were trimmed. What it costs is bounded by the arguments.

local function pairs_of(flat)
  local found = {}
  for i = 1, #flat, 2 do
    found[flat[i]] = flat[i + 1]
  end
  return found
end

-- How many entries lie above an id, and whether those are all. By pages that grow, since entries
-- may be small or a megabyte each.
local function count_above(key, id)
  local count, bytes, page = 0, 0, 10
  while count < tonumber(ARGV[1]) and bytes < tonumber(ARGV[2]) do
    local entries = redis.call('XRANGE', key, '(' .. id, '+', 'COUNT', page)
    for _, entry in ipairs(entries) do
      for _, text in ipairs(entry[2]) do
        bytes = bytes + #text
      end
    end
    count = count + #entries
    if #entries < page then
      return count, true
    end
    id = entries[#entries][1]
    page = 2 * page
  end
  return count, false
end

local function group_of(key, stream, info)
  local group = {
    name = info['name'],
    consumers = info['consumers'],
    pending = info['pending'],
    delivered = info['last-delivered-id'],
    read = info['entries-read'] or nil,
    lag = info['lag'] or nil,
  }
  if group.pending > 0 then
    local oldest = redis.call('XPENDING', key, group.name, '-', '+', 1)[1]
    if oldest then
      group.oldest = oldest[1]
      group.idle = oldest[3]
    end
  end
  local untouched = stream.added == stream.length and group.lag
  if group.delivered ~= stream.last and group.delivered ~= '0-0' and not untouched then
    group.counted, group.complete = count_above(key, group.delivered)
  end
  return group
end

local function stream_of(key)
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'stream' then
    return {kind = kind}
  end
  local info = pairs_of(redis.call('XINFO', 'STREAM', key))
  local stream = {
    kind = kind,
    length = info['length'],
    memory = redis.call('MEMORY', 'USAGE', key),
    last = info['last-generated-id'],
    first = info['first-entry'] and info['first-entry'][1] or nil,
    added = info['entries-added'] or nil,
    groups = {},
  }
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    stream.groups[#stream.groups + 1] = group_of(key, stream, pairs_of(flat))
  end
  return stream
end

local streams = {}
for i, key in ipairs(KEYS) do
  local done, stream = pcall(stream_of, key)
  if not done then
    stream = {problem = type(stream) == 'table' and stream['err'] or tostring(stream)}
  end
  streams[i] = stream
end
return cjson.encode(streams)
