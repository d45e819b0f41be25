-- Removes the record of a session that no client can name.
--
-- Invariant: only the very owner removes a record. What is left for a while says that no replica owns the session, in the
-- next epoch, and names the session: whoever claims the record next does so in a later epoch, so that nothing that the
-- former owner still sends has an effect.
--
-- KEYS  record
-- ARGV  ownership, life of what is left in milliseconds, tag of the session, or nothing where none was written
-- Returns 1, or -1 if another replica owns the session.
local owner = redis.call('GETRANGE', KEYS[1], 1, 6)
if owner == '' then
  return 1
end
if owner ~= ARGV[1] then
  return -1
end
local epoch = struct.unpack('>I2', owner, 5)
if epoch == 65535 then
  redis.call('UNLINK', KEYS[1])
  return 1
end
-- This is allowed in a full Redis, and so is every write of a script after the first one: what is left takes less.
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local none = '\0\0\0\0' .. struct.pack('>I2', epoch + 1)
redis.call('SET', KEYS[1], '\1' .. none .. '\0\0\0\0\0' .. ARGV[3], 'PX', ARGV[2])
return 1
