-- Makes the caller the owner of a session that has none.
--
-- Invariant: of all replicas that claim a session one gets it, until its record is gone. After a record that was removed
-- the next epoch begins.
--
-- KEYS  record
-- ARGV  ownership, life in milliseconds
-- Returns the owner's ownership.
local head = redis.call('GETRANGE', KEYS[1], 0, 20)
local owner, own = string.sub(head, 2, 7), ARGV[1]
if owner ~= '' then
  -- What was given up has a body, which is longer than the tag of a session that was removed.
  local epoch = struct.unpack('>I2', owner, 5)
  if #head > 20 or string.sub(owner, 1, 4) ~= '\0\0\0\0' or epoch == 65535 then
    return owner
  end
  own = string.sub(own, 1, 4) .. struct.pack('>I2', epoch + 1)
end
redis.call('SET', KEYS[1], '\1' .. own .. '\0\0\0\0\0', 'PX', ARGV[2])
return own
