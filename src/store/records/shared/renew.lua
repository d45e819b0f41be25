-- Lengthens the life of the record of one session.
--
-- Invariant: only the owner's renewal has an effect, and nothing but the life changes.
--
-- KEYS  record
-- ARGV  ownership, life in milliseconds
-- Returns 1, 0 without a record or with one of an earlier epoch, which is to be written, or -1 if another replica owns
-- the session or it is over.
local head = redis.call('GETRANGE', KEYS[1], 0, 11)
if #head < 12 then
  return 0
end
local owner = string.sub(head, 2, 7)
if string.byte(head, 12) ~= 0 then
  return -1
end
if owner ~= ARGV[1] then
  return struct.unpack('>I2', owner, 5) < struct.unpack('>I2', ARGV[1], 5) and 0 or -1
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
