-- KEYS: 1 a stored response. ARGV: 1 its end as JSON, 2 lifetime in seconds.
-- The first end holds; one that was deleted meanwhile stays so.
-- Returns: whose it is and what it takes; '' for one that is gone.
local owner = redis.call('HGET', KEYS[1], 'tenant')
if not owner then
  return {'', 0}
end
redis.call('HSETNX', KEYS[1], 'end', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
local size = 0
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  size = size + #value
end
return {owner, size}
