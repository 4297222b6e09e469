-- KEYS: 1 a stored response. ARGV: 1 its end as JSON, 2 lifetime in seconds.
-- The first end holds; one that was deleted meanwhile stays so.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('HSETNX', KEYS[1], 'end', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
