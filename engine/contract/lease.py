"""Whose a response is: the lease in Redis, and the scripts that change it.

A lease is a hash in the slot of its response's log, there from the submit to the end:

| field | holds |
|---|---|
| `w` | the worker that has it; `keys.NOBODY` while none has |
| `e` | its number, from 1: the epoch of the events written under it |
| `d` | `deadline_at` of the request |
| `r` | the request as JSON |
| `n` | how many of its workers died, one after the other, without adding anything |
| `a` | how many of its workers died in all |
| `p` | the seq at which it was last taken over |
| `c` | `1` once the response was cancelled |
| `g` | JSON list of the gateways that listened when its worker handed it over |

Every script is written for Redis 6.2, Valkey and Redis Cluster: all keys are declared
and share a slot, and nothing newer is called.
"""

from __future__ import annotations

from typing import Final

# A response is passed on so many times from workers that died without adding anything to it.
MAX_DEATHS: Final = 3
# And so many times in all: one that kills each worker after a word would go round for long.
MAX_ALL_DEATHS: Final = 15

# Only ever raised: who comes late with an old lease changes nothing.
# KEYS lease. ARGV worker, epoch, deadline, request, lifetime.
# Returns 1 if that worker has the lease, 0 if it is another's.
KEEP: Final = """
local found = redis.call('HMGET', KEYS[1], 'w', 'e')
local epoch = tonumber(found[2] or 0)
if epoch > tonumber(ARGV[2]) or (epoch == tonumber(ARGV[2]) and found[1] ~= ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'w', ARGV[1], 'e', ARGV[2], 'd', ARGV[3], 'r', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
"""

# Gives the response of one worker to another, and fences the first in the log.
# KEYS lease, log. ARGV from worker, to worker, 1 if the first died, response id,
# most deaths in a row, the log's lifetime, most deaths in all.
# Returns {outcome, worker}: 'taken', or why not: 'moved' (to that worker), 'ended',
# 'gone', 'cancelled', 'spent' (too many workers died).
TAKE_OVER: Final = """
local lease = redis.call('HMGET', KEYS[1], 'w', 'e', 'n', 'c', 'p', 'a')
if not lease[1] then
  return {'gone', ''}
end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local epoch, seq = tonumber(lease[2]), -1
if last then
  local kind = cjson.decode(last[2][2]).t
  if kind == 'f' or kind == 'x' then
    redis.call('DEL', KEYS[1])
    return {'ended', ''}
  end
  local last_epoch, last_seq = string.match(last[1], '(%d+)-(%d+)')
  epoch, seq = math.max(epoch, tonumber(last_epoch)), tonumber(last_seq)
end
if lease[1] ~= ARGV[1] then
  return {'moved', lease[1]}
end
if lease[4] then
  return {'cancelled', ''}
end
local deaths = tonumber(ARGV[3])
if lease[5] and seq <= tonumber(lease[5]) then
  deaths = deaths + tonumber(lease[3] or 0)
end
local all_deaths = tonumber(lease[6] or 0) + tonumber(ARGV[3])
if deaths > tonumber(ARGV[5]) or all_deaths > tonumber(ARGV[7]) then
  return {'spent', ''}
end
epoch, seq = epoch + 1, seq + 1
local event = cjson.encode({t = 'o', id = ARGV[4], e = epoch, s = seq, w = ARGV[2]})
redis.call('XADD', KEYS[2], epoch .. '-' .. seq, 'e', event)
redis.call('EXPIRE', KEYS[2], ARGV[6])
redis.call('HSET', KEYS[1], 'w', ARGV[2], 'e', epoch, 'n', deaths, 'p', seq,
  'a', all_deaths)
return {'taken', ARGV[2]}
"""

# Gives a response back, for anyone to take over.
# KEYS lease. ARGV worker, epoch, nobody, listeners as JSON. Returns 1 if it was the worker's.
RELEASE: Final = """
local lease = redis.call('HMGET', KEYS[1], 'w', 'e')
if lease[1] ~= ARGV[1] or lease[2] ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'w', ARGV[3], 'g', ARGV[4])
return 1
"""

# Notes that a response is not wanted any more. KEYS lease. Returns its worker or nothing.
CANCEL: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
redis.call('HSET', KEYS[1], 'c', '1')
return redis.call('HGET', KEYS[1], 'w')
"""
