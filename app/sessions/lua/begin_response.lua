-- ARGV: 5 response id, 6 item id, 7 deadline, 8 grace in seconds, 9 client event id or '',
-- 10 id of the item that it answers or '', 11 what it is asked to be, as JSON, 12 and 13
-- the most that `turns` reads.
local active = redis.call('HGET', meta, 'active')
if active == ARGV[5] then
  return sized(redis.call('HGET', meta, 'version'), redis.call('HGET', meta, 'active_after'),
    turns(ARGV[12], ARGV[13]))
end
if active then
  local lapsed = tonumber(redis.call('HGET', meta, 'active_until')) + tonumber(ARGV[8])
  if lapsed > tonumber(ARGV[3]) then
    return {'busy', active}
  end
end
if ARGV[10] ~= '' and redis.call('HEXISTS', items, ARGV[10]) == 0 then
  return {'no_answered'}
end
local previous = redis.call('LINDEX', order, -1) or ''
-- Some clients count their events from 1 on each connection: an id that comes after
-- another item is another request.
if ARGV[9] ~= '' and redis.call('HGET', meta, 'asked') == ARGV[9]
  and redis.call('HGET', meta, 'asked_item') == previous then
  return {'repeated', previous}
end
redis.call('HSET', meta, 'asked', ARGV[9], 'asked_item', ARGV[6])
redis.call('HSET', meta, 'active', ARGV[5], 'active_item', ARGV[6],
  'active_until', ARGV[7], 'active_since', ARGV[3], 'active_after', previous,
  'active_asked', ARGV[11])
return done({k = 'began', id = ARGV[5], item = ARGV[6], after = previous,
  deadline = ARGV[7], asked = ARGV[11]}, previous, turns(ARGV[12], ARGV[13]))
