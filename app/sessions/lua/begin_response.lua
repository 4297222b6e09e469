-- ARGV: 3 response id, 4 item id, 5 deadline, 6 grace in seconds, 7 client event id or '',
-- 8 id of the item that it answers or ''.
local active = redis.call('HGET', meta, 'active')
if active and active ~= ARGV[3] then
  local lapsed = tonumber(redis.call('HGET', meta, 'active_until')) + tonumber(ARGV[6])
  if lapsed > tonumber(ARGV[2]) then
    return {'busy', active}
  end
end
if active == ARGV[3] then
  local version = tonumber(redis.call('HGET', meta, 'version'))
  return {'ok', version, redis.call('HGET', meta, 'active_after')}
end
if ARGV[8] ~= '' and redis.call('HEXISTS', items, ARGV[8]) == 0 then
  return {'no_answered'}
end
local previous = redis.call('LINDEX', order, -1) or ''
-- Some clients count their events from 1 on each connection: an id that comes after
-- another item is another request.
if ARGV[7] ~= '' and redis.call('HGET', meta, 'asked') == ARGV[7]
  and redis.call('HGET', meta, 'asked_item') == previous then
  return {'repeated', previous}
end
redis.call('HSET', meta, 'asked', ARGV[7], 'asked_item', ARGV[4])
redis.call('HSET', meta, 'active', ARGV[3], 'active_item', ARGV[4],
  'active_until', ARGV[5], 'active_after', previous)
return done(previous)
