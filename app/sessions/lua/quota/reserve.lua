-- Takes room in every record, or in none.
-- ARGV: 2 id; 3 what for: 'open' (a conversation begins), 'item' (its next item), 'more'
-- (just bytes), 'back' (bytes that were not needed), 'empty' (likewise, where there is no
-- item at all); 4 bytes; 5 seconds in which it is written; then of each record the most
-- conversations and bytes, 0 for no limit.
-- Returns: 'ok', or what is full, the record's place, what it would have come to.
local id, kind, more = ARGV[2], ARGV[3], tonumber(ARGV[4])
local is_back = kind == 'back' or kind == 'empty'
local olds = {}
for place, key in ipairs(KEYS) do
  local old = redis.call('HGET', key, id)
  olds[place] = old
  local _, _, counted = read(old)
  local most, room = tonumber(ARGV[4 + 2 * place]), tonumber(ARGV[5 + 2 * place])
  if kind == 'item' and counted == 0 and most > 0 then
    local count = tonumber(redis.call('HGET', key, 'count') or '0') + 1
    if count > most then
      return {'conversations', place, count}
    end
  end
  if room > 0 and not is_back and not (kind == 'open' and old) then
    local bytes = tonumber(redis.call('HGET', key, 'bytes') or '0') + more
    if bytes > (kind == 'open' and room + room / 16 or room) then
      return {'stored_bytes', place, bytes}
    end
  end
end
for place, key in ipairs(KEYS) do
  local old = olds[place]
  local bytes, version, counted, reserved = read(old)
  if kind == 'item' then
    counted = 1
  elseif kind == 'empty' then
    counted = 0
  end
  if not is_back then
    reserved = math.max(reserved, now + tonumber(ARGV[5]))
  end
  if not (kind == 'open' and old) and not (is_back and not old) then
    put(key, id, old, math.max(0, bytes + more), version, counted, reserved)
  end
end
return {'ok', 0, 0}
