-- ARGV: 5 the last item that stays, or 'root' for none.
local active = redis.call('HGET', meta, 'active')
if active then
  return {'busy', active}
end
local ids = redis.call('LRANGE', order, 0, -1)
local stay = 0
if ARGV[5] ~= 'root' then
  for index, id in ipairs(ids) do
    if id == ARGV[5] then
      stay = index
    end
  end
  if stay == 0 then
    return {'no_item'}
  end
end
local size, gone = 0, {}
for index = stay + 1, #ids do
  size = size + #redis.call('HGET', items, ids[index])
  redis.call('HDEL', items, ids[index])
  gone[#gone + 1] = ids[index]
end
if stay == 0 then
  -- The next first message names it anew.
  redis.call('DEL', order)
  redis.call('HDEL', meta, 'title')
else
  redis.call('LTRIM', order, 0, stay - 1)
end
if size > 0 then
  redis.call('HINCRBY', meta, 'bytes', -size)
end
-- A list without entries would be told as an object.
return done({k = 'truncated', id = ARGV[5], gone = #gone > 0 and gone or nil}, unpack(gone))
