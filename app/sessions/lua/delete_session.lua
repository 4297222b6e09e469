-- ARGV: 5 tenant.
if redis.call('HGET', meta, 'tenant') ~= ARGV[5] then
  return {'gone'}
end
local active = redis.call('HGET', meta, 'active') or ''
local version = tonumber(redis.call('HGET', meta, 'version')) + 1
announce(version, {k = 'gone'})
redis.call('UNLINK', unpack(KEYS))
return {'ok', version, ARGV[5], 0, 0, active}
