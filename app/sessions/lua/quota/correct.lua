-- Puts entries right that are still as they were read, and wait for nothing.
-- ARGV: of each entry its id, what was read, then what it is instead: bytes ('' for gone),
-- version, whether it is counted.
for index = 2, #ARGV, 5 do
  local id, old, bytes = ARGV[index], ARGV[index + 1], ARGV[index + 2]
  local _, _, _, reserved = read(old)
  if reserved <= now and redis.call('HGET', KEYS[1], id) == old then
    if bytes == '' then
      put(KEYS[1], id, old, nil)
    else
      put(KEYS[1], id, old, tonumber(bytes), tonumber(ARGV[index + 3]),
        tonumber(ARGV[index + 4]), 0)
    end
  end
end
return 1
