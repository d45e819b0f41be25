-- Gives a session up: writes its record once more, with an owner that is no replica.
--
-- Invariant: only the owner gives a session up, and record and ownership change in one step. The next epoch begins, so
-- that nothing that the former owner still sends has an effect, and one replica at most adopts the session.
--
-- KEYS  record
-- ARGV  ownership, that of no replica in the next epoch, highest stream in use, life in milliseconds, sealed body
-- Returns 1, also if the caller has given the session up before, or -1 if another replica owns the session or it is
-- over.
local head = redis.call('GETRANGE', KEYS[1], 0, 11)
local highest = tonumber(ARGV[3])
if #head == 12 then
  local owner = string.sub(head, 2, 7)
  if owner == ARGV[2] then
    return string.byte(head, 12) == 0 and 1 or -1
  end
  local is_later = struct.unpack('>I2', owner, 5) >= struct.unpack('>I2', ARGV[1], 5)
  if string.byte(head, 12) ~= 0 or (owner ~= ARGV[1] and is_later) then
    return -1
  end
  highest = math.max(highest, (struct.unpack('>I4', head, 8)))
  -- This is allowed in a full Redis, and so is every write of a script after the first one.
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
local value = '\1' .. ARGV[2] .. struct.pack('>I4', highest) .. '\0' .. ARGV[5]
redis.call('SET', KEYS[1], value, 'PX', ARGV[4])
return 1
