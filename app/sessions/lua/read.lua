-- The whole conversation as it is at one moment: its hash, its order, its items, the
-- seconds that it has left. No MULTI: a Redis that is full refuses all that comes in one,
-- reads among them, and a conversation could not even be exported or deleted then.
-- KEYS: 1 meta, 2 order, 3 items.
return {
  redis.call('HGETALL', KEYS[1]),
  redis.call('LRANGE', KEYS[2], 0, -1),
  redis.call('HGETALL', KEYS[3]),
  redis.call('TTL', KEYS[1]),
}
