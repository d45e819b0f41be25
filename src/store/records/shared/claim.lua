-- Makes the caller the owner of a session that has none.
--
-- Invariant: of all replicas that claim a session one gets it, until its record is gone.
--
-- KEYS  record
-- ARGV  ownership, life in milliseconds
-- Returns the owner's ownership.
local owner = redis.call('GETRANGE', KEYS[1], 1, 6)
if owner ~= '' then
  return owner
end
redis.call('SET', KEYS[1], '\1' .. ARGV[1] .. '\0\0\0\0\0', 'PX', ARGV[2])
return ARGV[1]
