-- Takes a place for a connection in every budget, or in none.
-- KEYS: of each budget its connections.
-- ARGV: 1 connection id; 2 lifetime of its lease in ms; then of each budget the limit.
for b, key in ipairs(KEYS) do
  local limit = tonumber(ARGV[2 + b])
  if limit > 0 and not redis.call('ZSCORE', key, ARGV[1]) and held(key) >= limit then
    return b
  end
end
for _, key in ipairs(KEYS) do
  hold(key, ARGV[1], tonumber(ARGV[2]))
end
return 0
