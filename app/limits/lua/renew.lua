-- Keeps connections' places, and takes them again where Redis has lost them.
-- KEYS: 1 a budget's connections. ARGV: 1 lifetime in ms; then connection ids.
for i = 2, #ARGV do
  hold(KEYS[1], ARGV[i], tonumber(ARGV[1]))
end
return 1
