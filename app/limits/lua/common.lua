-- Put before every script. Rates are kept by GCRA: a key holds the time in ms at which
-- its budget is whole again, and a charge of n moves that by n shares of a minute.
-- Times are the server's, so that gateways whose clocks differ agree.
local MINUTE_MS = 60000
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

local function whole_at(key)
  return math.max(tonumber(redis.call('GET', key) or '0'), now)
end

local function keep(key, at)
  if at > now then
    redis.call('SET', key, string.format('%.3f', at), 'PX', math.ceil(at - now))
  else
    redis.call('DEL', key)
  end
end

local function held(key)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  return redis.call('ZCARD', key)
end

local function hold(key, id, ttl_ms)
  redis.call('ZADD', key, string.format('%.3f', now + ttl_ms), id)
  redis.call('PEXPIRE', key, ttl_ms + 1000)
end
