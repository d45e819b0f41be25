-- Removes the event log of one session.
--
-- Invariant: a log is not removed by a caller whose session has a record of a later epoch, or of another replica in
-- the same epoch.
--
-- KEYS  log, record of the session
-- ARGV  ownership (as in the record)
-- Returns whether there was one.
local owner = redis.call('GETRANGE', KEYS[2], 1, 6)
if owner ~= '' and owner ~= ARGV[1]
  and struct.unpack('>I2', owner, 5) >= struct.unpack('>I2', ARGV[1], 5) then
  return 0
end
return redis.call('UNLINK', KEYS[1])
