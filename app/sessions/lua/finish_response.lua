-- ARGV: 5 response id, 6 item id, 7 item as JSON or '' for none.
if redis.call('HGET', meta, 'active') ~= ARGV[5] then
  return {'not_active'}
end
local after = redis.call('HGET', meta, 'active_after')
redis.call('HDEL', meta, 'active', 'active_item', 'active_until', 'active_since', 'active_after',
  'active_asked')
local change = {k = 'ended', id = ARGV[5], item = ARGV[6]}
if ARGV[7] ~= '' and redis.call('HEXISTS', items, ARGV[6]) == 0 then
  if after == '' then
    -- The conversation was empty: what came meanwhile came after the answer's place.
    redis.call('LPUSH', order, ARGV[6])
  elseif redis.call('LINSERT', order, 'AFTER', after, ARGV[6]) < 1 then
    redis.call('RPUSH', order, ARGV[6])
  end
  redis.call('HSET', items, ARGV[6], ARGV[7])
  redis.call('HINCRBY', meta, 'bytes', #ARGV[7])
  change.after = before(ARGV[6])
end
return done(change)
