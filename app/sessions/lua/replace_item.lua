-- ARGV: 5 item id, 6 item as JSON, 7 the JSON that it was read as, 8 characters that stay.
local body = redis.call('HGET', items, ARGV[5])
if not body then
  return {'no_item'}
end
if body ~= ARGV[7] then
  return {'stale'}
end
redis.call('HSET', items, ARGV[5], ARGV[6])
redis.call('HINCRBY', meta, 'bytes', #ARGV[6] - #body)
return done({k = 'cut', id = ARGV[5], chars = tonumber(ARGV[8])})
