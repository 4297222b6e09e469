-- Put before every script. ARGV[1] is the lifetime in seconds, ARGV[2] the time now.
local meta, order, items, sends, ring = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

if redis.call('EXISTS', meta) == 0 then
  return {'gone'}
end

local function done(...)
  local version = redis.call('HINCRBY', meta, 'version', 1)
  redis.call('HSET', meta, 'updated_at', ARGV[2])
  for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, ARGV[1])
  end
  return {'ok', version, ...}
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
