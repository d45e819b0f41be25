-- Gives a session another owner.
--
-- Invariant: a compare-and-set. Of all replicas that saw the same ownership one adopts the session, in the next epoch;
-- a session that is over is adopted by none.
--
-- KEYS  record
-- ARGV  ownership that the caller saw, its own in the next epoch, life in milliseconds
-- Returns the record as it is afterwards, or nothing without one. The caller adopted the session if the record has
-- its ownership.
local value = redis.call('GET', KEYS[1])
if not value or #value < 12 then
  return false
end
if string.sub(value, 2, 7) == ARGV[1] and string.byte(value, 12) == 0 then
  redis.call('SETRANGE', KEYS[1], 1, ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  value = redis.call('GET', KEYS[1])
end
return value
