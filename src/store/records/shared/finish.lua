-- Says that a session is over.
--
-- Invariant: only the owner ends a session, and one that is over stays so.
--
-- KEYS  record
-- ARGV  ownership, life of what is left in milliseconds
-- Returns 1, or -1 if another replica owns the session.
local owner = redis.call('GETRANGE', KEYS[1], 1, 6)
if owner ~= '' and owner ~= ARGV[1]
  and struct.unpack('>I2', owner, 5) >= struct.unpack('>I2', ARGV[1], 5) then
  return -1
end
if owner ~= '' then
  -- This is allowed in a full Redis, and so is every write of a script after the first one: what is left takes less.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('SET', KEYS[1], '\1' .. ARGV[1] .. '\0\0\0\0\1', 'PX', ARGV[2])
return 1
