-- Charges one request to every budget, or to none.
-- KEYS: of each budget its requests, tokens, responses.
-- ARGV: 1 response id, or '' for a request without an answer; 2 lifetime of its lease in
-- ms; 3 tokens; then of each budget requests and tokens a minute, responses; 0 for no limit.
-- Returns: what refuses or ''; ms after which it may not; then of each budget's requests
-- and tokens what is left and the ms until all is.
local id, ttl_ms, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local refused, retry_ms = '', 0
local repeated = id ~= '' and redis.call('ZSCORE', KEYS[3], id)
local rates = {}

for b = 0, #KEYS / 3 - 1 do
  for r = 1, 2 do
    local key, limit = KEYS[3 * b + r], tonumber(ARGV[3 + 3 * b + r])
    -- More than a whole budget is never there, so it is not asked for in advance.
    local cost = r == 1 and 1 or math.min(tokens, limit)
    if repeated then
      cost = 0
    end
    local rate = {key = key, limit = limit, at = now, after = now}
    if limit > 0 then
      rate.at = whole_at(key)
      rate.after = rate.at + cost * MINUTE_MS / limit
      local over_ms = rate.after - now - MINUTE_MS
      if cost > 0 and over_ms > 0.01 and over_ms > retry_ms then
        refused, retry_ms = r == 1 and 'requests' or 'tokens', over_ms
      end
    end
    rates[#rates + 1] = rate
  end
  local limit = tonumber(ARGV[3 + 3 * b + 3])
  if id ~= '' and not repeated and refused == '' and limit > 0
    and held(KEYS[3 * b + 3]) >= limit then
    refused = 'responses'
  end
end

if refused == '' and not repeated then
  for _, rate in ipairs(rates) do
    if rate.after > rate.at then
      keep(rate.key, rate.after)
      rate.at = rate.after
    end
  end
  if id ~= '' then
    for b = 0, #KEYS / 3 - 1 do
      hold(KEYS[3 * b + 3], id, ttl_ms)
    end
  end
end

local reply = {refused, math.ceil(retry_ms)}
for _, rate in ipairs(rates) do
  local left = math.floor((MINUTE_MS - (rate.at - now)) * rate.limit / MINUTE_MS + 0.000001)
  reply[#reply + 1] = math.max(left, 0)
  reply[#reply + 1] = math.ceil(rate.at - now)
end
return reply
