-- ARGV: 3 settings as JSON, 4 version or ''.
if stale(ARGV[4]) then
  return {'stale'}
end
redis.call('HSET', meta, 'settings', ARGV[3])
return done()
