-- ARGV: 5 item id.
local body = redis.call('HGET', items, ARGV[5])
if not body then
  return {'no_item'}
end
local previous = before(ARGV[5])
if redis.call('HGET', meta, 'active_after') == ARGV[5] then
  -- The running answer keeps its place.
  redis.call('HSET', meta, 'active_after', previous)
end
redis.call('LREM', order, 1, ARGV[5])
redis.call('HDEL', items, ARGV[5])
redis.call('HINCRBY', meta, 'bytes', -#body)
return done({k = 'deleted', id = ARGV[5], after = previous})
