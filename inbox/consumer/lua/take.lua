-- Claims a batch of events for a group.
--
-- KEYS     the parked keys (hash), the dead letters (sorted set), the watermarks (hash), then one
--          record per event
-- ARGV     the caller's token, the lease in microseconds, 'suspects' to claim those too or '',
--          'seq' to go by watermarks or '', then per event its place, its id, its seq or '', and
--          the last seq of its place that is handled and not yet settled, or ''
-- Returns  per event:  'claimed', fence, attempts
--          'done', '', ''          it was handled, or given up, before
--          'running', milliseconds, ''   somebody else is at it
--          'suspect', '', attempts       whoever tried it last did not come back
--          'parked', '', ''        its key waits behind a dead letter
--          'hole', last seq, ''    an event of its key is missing
--          'corrupt', reason, ''

local token, lease, suspects = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'suspects'
local by_seq = ARGV[4] == 'seq'
local now = clock()
local any_parked = redis.call('EXISTS', KEYS[1]) == 1
local any_dead = redis.call('EXISTS', KEYS[2]) == 1
local answer = {}
local expected = {}
-- Nearly all events are new. They all get the same record.
local unheard_of = first(token, '', lease, now)
local unheard_text, unheard_kept = text_of(unheard_of), milliseconds(lease) + GRACE
local unheard_fence = whole(unheard_of.fence)

local function judged(kind, first, second)
  answer[#answer + 1] = kind
  answer[#answer + 1] = first or ''
  answer[#answer + 1] = second or ''
end

-- Whether the watermark of its place lets an event pass; if not, it was judged.
local function passes(place, seq, unsettled)
  local last = expected[place] or unsettled ~= '' and unsettled or redis.call('HGET', KEYS[3], place)
  if last and tonumber(seq) <= tonumber(last) then
    judged('done')
  elseif last and tonumber(seq) > tonumber(last) + 1 then
    judged('hole', last)
  else
    expected[place] = seq
    return true
  end
end

-- Whether an event was handled before its key was parked; it does not wait in line then.
local function handled(key, place, seq)
  if by_seq and seq ~= '' then
    local last = redis.call('HGET', KEYS[3], place)
    return last and tonumber(seq) <= tonumber(last)
  end
  local record = read(key)
  return record and record.state ~= 'running' and not absent(record, now)
end

for i = 4, #KEYS do
  local base = 4 + (i - 4) * 4
  local place, id, seq = ARGV[base + 1], ARGV[base + 2], ARGV[base + 3]
  if any_dead and redis.call('ZSCORE', KEYS[2], id) then
    judged('done')
  elseif any_parked and redis.call('HEXISTS', KEYS[1], place) == 1 then
    judged(handled(KEYS[i], place, seq) and 'done' or 'parked')
  elseif not by_seq or seq == '' or passes(place, seq, ARGV[base + 4]) then
    local new = redis.call('EXISTS', KEYS[i]) == 0
    local record, unreadable
    if not new then
      record, unreadable = read(KEYS[i])
    end
    if new then
      redis.call('SET', KEYS[i], unheard_text, 'PX', unheard_kept)
      judged('claimed', unheard_fence, '1')
    elseif unreadable then
      judged('corrupt', unreadable[2])
    elseif absent(record, now) then
      if record and record.state == 'running' and not suspects then
        judged('suspect', '', whole(record.attempts))
      else
        local fresh = take(KEYS[i], record, token, '', lease, now)
        judged('claimed', whole(fresh.fence), whole(fresh.attempts))
      end
    elseif record.state == 'running' and record.token == token then
      judged('claimed', whole(record.fence), whole(record.attempts))
    elseif record.state == 'running' then
      judged('running', milliseconds(record.expires - now))
    else
      judged('done')
    end
  end
end
return answer
