-- Put before every script. KEYS: an owner's records. ARGV[1] is their lifetime in seconds.
-- An entry is '<bytes>:<version>:<1 if counted>:<time until which something reserved may be
-- on its way>'; `bytes` and `count` are all entries' sums. Times are the server's.
local now = tonumber(redis.call('TIME')[1])

local function read(value)
  if not value then
    return 0, 0, 0, 0
  end
  local bytes, version, counted, reserved = string.match(value, '^(%d+):(%d+):(%d):(%d+)$')
  return tonumber(bytes), tonumber(version), tonumber(counted), tonumber(reserved)
end

-- Replaces an entry, whose text was `old` (false for none), by another (nil for none).
local function put(key, id, old, bytes, version, counted, reserved)
  local old_bytes, _, old_counted = read(old)
  if bytes then
    redis.call('HSET', key, id, string.format('%d:%d:%d:%d', bytes, version, counted, reserved))
  elseif old then
    redis.call('HDEL', key, id)
  end
  redis.call('HINCRBY', key, 'bytes', (bytes or 0) - old_bytes)
  redis.call('HINCRBY', key, 'count', (bytes and counted or 0) - old_counted)
  redis.call('EXPIRE', key, ARGV[1])
end
