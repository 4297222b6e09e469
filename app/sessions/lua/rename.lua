-- ARGV: 5 tenant, 6 name.
if redis.call('HGET', meta, 'tenant') ~= ARGV[5] then
  return {'gone'}
end
redis.call('HSET', meta, 'name', ARGV[6])
return done({k = 'title', title = ARGV[6]})
