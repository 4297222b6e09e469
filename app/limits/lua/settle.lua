-- Ends a response's lease and puts the difference between charge and use right, once.
-- KEYS: of each budget its tokens, responses.
-- ARGV: 1 response id; 2 tokens charged; 3 tokens used; then of each budget tokens a minute.
for b = 0, #KEYS / 2 - 1 do
  local key, limit = KEYS[2 * b + 1], tonumber(ARGV[4 + b])
  if redis.call('ZREM', KEYS[2 * b + 2], ARGV[1]) == 1 and limit > 0 then
    local more = tonumber(ARGV[3]) - math.min(tonumber(ARGV[2]), limit)
    keep(key, whole_at(key) + more * MINUTE_MS / limit)
  end
end
return 1
