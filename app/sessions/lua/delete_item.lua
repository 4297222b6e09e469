-- ARGV: 3 item id.
local body = redis.call('HGET', items, ARGV[3])
if not body then
  return {'no_item'}
end
redis.call('LREM', order, 1, ARGV[3])
redis.call('HDEL', items, ARGV[3])
redis.call('HINCRBY', meta, 'bytes', -#body)
return done()
