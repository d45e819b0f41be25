-- Writes the record of one session.
--
-- Invariant: the epoch of a record never falls, but where its last owner takes back that it has removed the record, as
-- the next session under this record has begun, which has another tag than the removed one; in one epoch it has one owner,
-- and a record that says that the session is over stays as it is. The highest stream never falls.
--
-- KEYS  record
-- ARGV  ownership, highest stream in use, life in milliseconds, sealed body, tag of the session
-- Returns 1, or -1 if another replica owns the session or it is over.
local head = redis.call('GETRANGE', KEYS[1], 0, 20)
local highest = tonumber(ARGV[2])
if #head >= 12 then
  local owner = string.sub(head, 2, 7)
  local epoch, own = struct.unpack('>I2', owner, 5), struct.unpack('>I2', ARGV[1], 5)
  -- Without a session, but perhaps with the tag of the removed one.
  local is_removed = #head <= 20 and string.sub(owner, 1, 4) == '\0\0\0\0' and epoch == own + 1
    and string.sub(head, 13) ~= ARGV[5]
  if string.byte(head, 12) ~= 0 or (owner ~= ARGV[1] and epoch >= own and not is_removed) then
    return -1
  end
  highest = math.max(highest, (struct.unpack('>I4', head, 8)))
end
local value = '\1' .. ARGV[1] .. struct.pack('>I4', highest) .. '\0' .. ARGV[4]
redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
return 1
