-- Something takes so much now, whatever was noted or reserved before.
-- ARGV: 2 id; 3 bytes, -1 if it is gone; 4 its version; 5 whether it is counted, 1 or 0.
local bytes, version = tonumber(ARGV[3]), tonumber(ARGV[4])
for _, key in ipairs(KEYS) do
  local old = redis.call('HGET', key, ARGV[2])
  if bytes < 0 then
    if old then
      put(key, ARGV[2], old, nil)
    end
  else
    local _, known, _, reserved = read(old)
    if version >= known then
      put(key, ARGV[2], old, bytes, version, tonumber(ARGV[5]), reserved)
    end
  end
end
return 1
