-- Put before every script but that which deletes. A Redis that evicts may have dropped one
-- key and kept the others: what is left is no conversation.
local listed = redis.call('LLEN', order)
if listed ~= redis.call('HLEN', items)
  or (listed == 0 and redis.call('HGET', meta, 'bytes') ~= '0') then
  return {'gone'}
end
