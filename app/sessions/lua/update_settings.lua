-- ARGV: 5 settings as JSON, 6 version or ''.
if stale(ARGV[6]) then
  return {'stale'}
end
redis.call('HSET', meta, 'settings', ARGV[5])
return done({k = 'settings', settings = told(ARGV[5])})
