-- ARGV: 3 item id, 4 item as JSON, 5 the JSON that it was read as.
local body = redis.call('HGET', items, ARGV[3])
if not body then
  return {'no_item'}
end
if body ~= ARGV[5] then
  return {'stale'}
end
redis.call('HSET', items, ARGV[3], ARGV[4])
redis.call('HINCRBY', meta, 'bytes', #ARGV[4] - #body)
return done()
