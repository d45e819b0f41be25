-- Gives a session another owner.
--
-- Invariant: a compare-and-set. Of all replicas that saw the same ownership one adopts the session, in the next epoch;
-- a session that is over is adopted by none. Nothing is changed after the caller's time is over, as the former owner
-- serves its sessions again a while after it has a lease: the script may run long after it was decided to send it.
--
-- KEYS  record
-- ARGV  ownership that the caller saw, its own in the next epoch, life in milliseconds, until when, in milliseconds since
--       the Unix epoch by the clock of this server
-- Returns the record as it is afterwards, or nothing without one. The caller adopted the session if the record has
-- its ownership.
local value = redis.call('GET', KEYS[1])
if not value or #value < 12 then
  return false
end
local time = redis.call('TIME')
local is_late = time[1] * 1000 + math.floor(time[2] / 1000) > tonumber(ARGV[4])
if string.sub(value, 2, 7) == ARGV[1] and string.byte(value, 12) == 0 and not is_late then
  -- This is allowed in a full Redis, and so is every write of a script after the first one.
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('SETRANGE', KEYS[1], 1, ARGV[2])
  value = redis.call('GET', KEYS[1])
end
return value
