-- ARGV: 5 item id, 6 item as JSON, 7 after ('' the end, 'root' the front, or an id),
-- 8 client event id or '', 9 most items, 10 most bytes, 11 most event ids,
-- 12 version or '', 13 the title that it would give or ''.
local id, body, after, send = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local function same(old_body)
  local old, new = cjson.decode(old_body), cjson.decode(body)
  return old.role == new.role and old.text == new.text
end

if send ~= '' then
  local made = redis.call('HGET', sends, send)
  local old = made and redis.call('HGET', items, made)
  -- Some clients count their events from 1 on each connection: an id that comes with
  -- another text is another send.
  if made and (not old or same(old)) then
    return {'known', tonumber(redis.call('HGET', meta, 'version')), before(made), made}
  end
end
if stale(ARGV[12]) then
  return {'stale'}
end
if id == redis.call('HGET', meta, 'active_item') then
  -- The running answer will have it.
  return {'taken'}
end
local existing = redis.call('HGET', items, id)
if existing then
  if same(existing) then
    return {'known', tonumber(redis.call('HGET', meta, 'version')), before(id), id}
  end
  return {'taken'}
end
if after ~= '' and after ~= 'root' and redis.call('HEXISTS', items, after) == 0 then
  return {'no_previous'}
end
local count = redis.call('LLEN', order)
if count >= tonumber(ARGV[9]) then
  return {'too_many', count}
end
local size = tonumber(redis.call('HGET', meta, 'bytes')) + #body
if size > tonumber(ARGV[10]) then
  return {'too_large', size}
end

local previous = ''
if after == 'root' then
  redis.call('LPUSH', order, id)
elseif after == '' then
  previous = redis.call('LINDEX', order, -1) or ''
  redis.call('RPUSH', order, id)
else
  previous = after
  redis.call('LINSERT', order, 'AFTER', after, id)
end
redis.call('HSET', items, id, body)
redis.call('HSET', meta, 'bytes', size)
if send ~= '' then
  local is_new = redis.call('HSET', sends, send, id) == 1
  if is_new and redis.call('LPUSH', ring, send) > tonumber(ARGV[11]) then
    redis.call('HDEL', sends, redis.call('RPOP', ring))
  end
end
if redis.call('HGET', meta, 'active_after') == previous then
  -- The running answer's place is between the two, whether it shows yet or not.
  previous = redis.call('HGET', meta, 'active_item')
end
local change = {k = 'item', id = id, after = previous, body = told(body)}
if ARGV[13] ~= '' and redis.call('HSETNX', meta, 'title', ARGV[13]) == 1
  and redis.call('HEXISTS', meta, 'name') == 0 then
  change.title = ARGV[13]
end
return done(change, previous, id, change.title or '')
