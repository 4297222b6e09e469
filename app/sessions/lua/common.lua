-- Put before every script. ARGV[1] is the lifetime in seconds, ARGV[2] that of a
-- conversation without items, ARGV[3] the time now, ARGV[4] who changes it ('' nobody
-- in particular): whoever hears of a change knows its own by that.
local meta, order, items, sends, ring = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

if redis.call('EXISTS', meta) == 0 then
  return {'gone'}
end

local function announce(version, change)
  change.v, change.o = version, ARGV[4]
  redis.call('PUBLISH', meta .. ':changes', cjson.encode(change))
end

-- A reply that says whose the conversation is, what it takes (settings and items) and how
-- many items it has.
local function sized(version, ...)
  local size = tonumber(redis.call('HGET', meta, 'bytes')) + redis.call('HSTRLEN', meta, 'settings')
  return {'ok', tonumber(version), redis.call('HGET', meta, 'tenant'), size,
    redis.call('LLEN', order), ...}
end

-- The items as JSON, if they take at most `text` bytes and `each` for every one of them;
-- their number and bytes go before.
local function turns(text, each)
  local ids = redis.call('LRANGE', order, 0, -1)
  local size = tonumber(redis.call('HGET', meta, 'bytes'))
  if #ids == 0 or size - #ids * tonumber(each) > tonumber(text) then
    return #ids, size, {}
  end
  return #ids, size, redis.call('HMGET', items, unpack(ids))
end

-- Ends a script that changed something: the version rises, whoever listens is told.
local function done(change, ...)
  local version = redis.call('HINCRBY', meta, 'version', 1)
  redis.call('HSET', meta, 'updated_at', ARGV[3])
  local lifetime = redis.call('LLEN', order) > 0 and ARGV[1] or ARGV[2]
  for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, lifetime)
  end
  announce(version, change)
  return sized(version, ...)
end

-- An item's JSON as listeners are told it; they fetch one that is long.
local function told(body)
  return #body <= 65536 and body or nil
end

local function stale(expected)
  return expected ~= '' and redis.call('HGET', meta, 'version') ~= expected
end

local function before(id)
  local ids = redis.call('LRANGE', order, 0, -1)
  for index, each in ipairs(ids) do
    if each == id then
      return ids[index - 1] or ''
    end
  end
  return ''
end
