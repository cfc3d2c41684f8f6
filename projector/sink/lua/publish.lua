-- Publishes a batch of one lane and moves the lane's state, or does neither.
--
-- KEYS[1]  the lane's state (text)
-- KEYS[2]  the lane's @tops: stream key -> last id that a projector saw there (hash)
-- KEYS[3…] the streams of the batch
-- ARGV     expected state, new state ('' for none), the key of a lost stream to forget or '', then
--          per stream:  high water (0: none), maxlen (0: none), '~' or '=', n, n group names
--          per event:   number of its stream (1…), n, n field names and values
-- Returns  {'ok', entries added by others…}
--          {'moved', stored state}                     another state is stored
--          {'blocked', stream, reason, detail}         this stream cannot take entries
--
-- Everything is checked before anything is written, since an error in the middle of a script undoes
-- nothing. The compare makes retries, doubled requests and zombies harmless.

local stored = redis.call('GET', KEYS[1]) or ''
if stored ~= ARGV[1] then
  return {'moved', stored}
end

-- What may go wrong with one stream, and is its own affair: rights, types, no ids left. The rest
-- (out of memory, read-only, too few replicas) is the server's fault, which time may heal.
local function its_own(problem)
  return string.match(problem, '^ERR') or string.match(problem, '^WRONGTYPE')
    or string.match(problem, '^NOPERM')
    or string.find(problem, 'The user executing the script', 1, true)  -- NOPERM, as 6.2 puts it
end

-- Why the caller may not write to a stream, or take back what it wrote; servers since 7.0 can tell.
local function forbidden(key)
  if not redis.acl_check_cmd then
    return nil
  end
  if not redis.acl_check_cmd('XADD', key, '*', 'field', 'value') then
    return 'no right to XADD'
  end
  if not redis.acl_check_cmd('XDEL', key, '0-1') then
    return 'no right to XDEL'
  end
end

local argument = 4
local streams = {}
local strangers = {}

-- A stream's last id and length; without the right to ask, nothing and the reason.
local function look_at(key)
  local info = redis.pcall('XINFO', 'STREAM', key)
  if info['err'] then
    return nil, nil, info['err']
  end
  local last, length
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      last = info[i + 1]
    elseif info[i] == 'length' then
      length = info[i + 1]
    end
  end
  return last, length
end

local function newer(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if #a_ms ~= #b_ms then return #a_ms > #b_ms end
  if a_ms ~= b_ms then return a_ms > b_ms end
  if #a_seq ~= #b_seq then return #a_seq > #b_seq end
  return a_seq > b_seq
end

for i = 3, #KEYS do
  local key = KEYS[i]
  local stream = {
    key = key,
    high_water = tonumber(ARGV[argument]),
    maxlen = tonumber(ARGV[argument + 1]),
    how = ARGV[argument + 2],
    groups = {},
  }
  local groups = tonumber(ARGV[argument + 3])
  for g = 1, groups do
    stream.groups[g] = ARGV[argument + 3 + g]
  end
  argument = argument + 4 + groups

  local reply = redis.pcall('TYPE', key)
  local kind, problem = reply['ok'], reply['err'] or forbidden(key)
  if problem then
    return {'blocked', i - 2, 'refused', problem}
  end
  local remembered = redis.call('HGET', KEYS[2], key)
  if kind == 'none' then
    if remembered then
      return {'blocked', i - 2, 'deleted', remembered}
    end
  elseif kind ~= 'stream' then
    return {'blocked', i - 2, 'type', kind}
  else
    local last, length, hidden = look_at(key)
    if hidden then
      return {'blocked', i - 2, 'refused', hidden}
    end
    if remembered and newer(remembered, last) then
      return {'blocked', i - 2, 'deleted', remembered}
    end
    if last ~= (remembered or '0-0') then
      strangers[#strangers + 1] = key
    end
    if stream.high_water > 0 and length >= stream.high_water then
      return {'blocked', i - 2, 'full', length}
    end
  end
  stream.unknown = not remembered
  streams[i - 2] = stream
end

-- A consumer may have made the stream, or its own group, before the first event came.
for i = 1, #streams do
  if streams[i].unknown then
    for _, group in ipairs(streams[i].groups) do
      redis.pcall('XGROUP', 'CREATE', streams[i].key, group, '0', 'MKSTREAM')
    end
  end
end

local added = {}
while argument <= #ARGV do
  local number = tonumber(ARGV[argument])
  local stream = streams[number]
  local count = tonumber(ARGV[argument + 1])
  local first = argument + 2
  local id
  if stream.maxlen > 0 then
    id = redis.pcall('XADD', stream.key, 'MAXLEN', stream.how, stream.maxlen, '*',
      unpack(ARGV, first, first + count - 1))
  else
    id = redis.pcall('XADD', stream.key, '*', unpack(ARGV, first, first + count - 1))
  end
  if type(id) == 'table' then
    for i = #added, 1, -1 do
      redis.call('XDEL', added[i][1], added[i][2])
    end
    for i = 1, #streams do
      if redis.call('EXISTS', streams[i].key) == 1 then
        redis.call('HSET', KEYS[2], streams[i].key, (look_at(streams[i].key)))
      end
    end
    if not its_own(id['err']) then
      return id
    end
    return {'blocked', number, 'refused', id['err']}
  end
  added[#added + 1] = {stream.key, id}
  stream.last = id
  argument = first + count
end

redis.call('SET', KEYS[1], ARGV[2])
if ARGV[3] ~= '' then
  redis.call('HDEL', KEYS[2], ARGV[3])
end
for i = 1, #streams do
  redis.call('HSET', KEYS[2], streams[i].key, streams[i].last)
end
return {'ok', unpack(strangers)}
