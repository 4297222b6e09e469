-- ARGV: 3 response id, 4 item id, 5 item as JSON or '' for none.
if redis.call('HGET', meta, 'active') ~= ARGV[3] then
  return {'not_active'}
end
local after = redis.call('HGET', meta, 'active_after')
redis.call('HDEL', meta, 'active', 'active_item', 'active_until', 'active_after')
if ARGV[5] ~= '' and redis.call('HEXISTS', items, ARGV[4]) == 0 then
  if after == '' then
    -- The conversation was empty: what came meanwhile came after the answer's place.
    redis.call('LPUSH', order, ARGV[4])
  elseif redis.call('LINSERT', order, 'AFTER', after, ARGV[4]) < 1 then
    redis.call('RPUSH', order, ARGV[4])
  end
  redis.call('HSET', items, ARGV[4], ARGV[5])
  redis.call('HINCRBY', meta, 'bytes', #ARGV[5])
end
return done()
