-- Tells how much of a caller's quota one replica holds, and asks how much the others hold.
--
-- Invariant: each field is one replica's own number, which that replica alone writes; it counts until its end by the
-- clock of the store. So the share of a lost replica comes back by itself.
--
-- KEYS  quota: a hash of replicas
-- ARGV  the replica, how much it holds (0: nothing, and no field), life of that in milliseconds
-- Returns how much the others hold.
local quota, own, held, life = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others = 0
local fields = redis.call('HGETALL', quota)
for at = 1, #fields, 2 do
  local count, ends = string.match(fields[at + 1], '^(%d+) (%d+)$')
  if fields[at] == own then
    count = 0
  elseif tonumber(ends) <= now or tonumber(ends) > now + 2 * life then
    -- It is over, or was written before the clock was set back: a replica that lives writes its own again.
    redis.call('HDEL', quota, fields[at])
    count = 0
  end
  others = others + tonumber(count)
end
if held == 0 then
  redis.call('HDEL', quota, own)
else
  redis.call('HSET', quota, own, string.format('%.0f %.0f', held, now + life))
  redis.call('PEXPIRE', quota, life)
end
return others
