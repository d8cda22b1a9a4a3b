"""Lua scripts: each runs as one atomic step on the server, by the server's clock.

Times are milliseconds since 1970, or seconds for buckets. Every key expires when nothing in it is
valid any more, so that names which are not used again leave nothing behind.
"""

import hashlib
from dataclasses import dataclass, field

# As many arguments as Lua passes to a call, with room to spare; its own limit is about 8,000.
MOST_ARGUMENTS = 1_000

CLOCK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# Removes what has expired from the sorted set, and lets the key expire with the last of the rest.
EXPIRY = """
local function drop_expired()
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
end
local function expire_with_last()
  local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
  if last then redis.call('PEXPIREAT', KEYS[1], last) end
end
"""
HOLD = (
    CLOCK
    + EXPIRY
    + f"""
local function hold(ids)
  local expires_at = now + ARGV[1]
  for first = 1, #ids, {MOST_ARGUMENTS} do
    local scored = {{}}
    for i = first, math.min(first + {MOST_ARGUMENTS} - 1, #ids) do
      scored[#scored + 1] = expires_at
      scored[#scored + 1] = ids[i]
    end
    redis.call('ZADD', KEYS[1], unpack(scored))
  end
  expire_with_last()
end
"""
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script with one key."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


# lease, cap, prefix of ids, first number, want -> how many were granted
RESERVE = Script(
    HOLD
    + """
drop_expired()
local room = math.min(tonumber(ARGV[5]), ARGV[2] - redis.call('ZCARD', KEYS[1]))
local ids = {}
for number = tonumber(ARGV[4]), ARGV[4] + room - 1 do
  ids[#ids + 1] = string.format('%s%.0f', ARGV[3], number)
end
hold(ids)
return #ids
"""
)
# lease, ids
RENEW = Script(
    HOLD
    + """
drop_expired()
local ids = {}
for i = 2, #ARGV do ids[#ids + 1] = ARGV[i] end
hold(ids)
"""
)
# -> how many are live
HELD = Script(
    CLOCK
    + EXPIRY
    + """
drop_expired()
return redis.call('ZCARD', KEYS[1])
"""
)
# rate, burst -> whether a token was granted, tokens left. As `take_one` of `domain/concurrency.py`.
TAKE = Script(
    """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tokens = burst
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
if bucket[1] then
  tokens = math.min(bucket[1] + math.max(now - bucket[2], 0) * rate, burst)
end
local granted = 0
if tokens >= 1 then
  granted, tokens = 1, tokens - 1
end
local left = string.format('%.17g', tokens)
redis.call('HSET', KEYS[1], 'tokens', left, 'at', string.format('%.17g', now))
-- A full bucket equals a new one.
redis.call('PEXPIRE', KEYS[1], math.min(math.ceil((burst - tokens) / rate * 1000), 1e12))
return {granted, left}
"""
)
# life, id, document. Members of the set are the id, a space, and the document.
ANNOUNCE = Script(
    CLOCK
    + EXPIRY
    + """
drop_expired()
local id = ARGV[2] .. ' '
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(member, 1, #id) == id then redis.call('ZREM', KEYS[1], member) end
end
if tonumber(ARGV[1]) > 0 then
  redis.call('ZADD', KEYS[1], now + ARGV[1], id .. ARGV[3])
end
expire_with_last()
"""
)
# -> members
MEMBERS = Script(
    CLOCK
    + EXPIRY
    + """
drop_expired()
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""
)
