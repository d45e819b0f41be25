-- Appends entries of the session's owner to the event log of one session.
--
-- Invariant: the numbers of a log rise, and only the owner of the session adds to it. A caller changes nothing if
-- the record or the log is of a later epoch, or the record of another replica in the same epoch. An entry that the log
-- has is not added again, so that a call whose reply was lost can be repeated.
--
-- KEYS  log, record of the session
-- ARGV  ownership (as in the record), highest stream in use, oldest number to keep, life in milliseconds,
--       first number of the next epoch; then the number and the content of each entry
-- Returns {-1, 0} if refused; else whether there is a record (1 or 0) and how many entries there were.
local log, record = KEYS[1], KEYS[2]
local owner = redis.call('GETRANGE', record, 1, 6)
if owner ~= '' and owner ~= ARGV[1]
  and struct.unpack('>I2', owner, 5) >= struct.unpack('>I2', ARGV[1], 5) then
  return {-1, 0}
end
local before = redis.call('XLEN', log)
for at = 6, #ARGV, 2 do
  local added = redis.pcall('XADD', log, ARGV[at] .. '-0', 'e', ARGV[at + 1])
  if type(added) == 'table' and added.err then
    -- Most likely its number is not above the newest one, which is looked up only now: it comes with its content.
    local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
    local newest = last and tonumber(string.match(last[1], '^%d+')) or 0
    if newest >= tonumber(ARGV[5]) then
      return {-1, 0}
    end
    if newest < tonumber(ARGV[at]) then
      return added
    end
  end
end
redis.call('XTRIM', log, 'MINID', ARGV[3] .. '-0')
redis.call('PEXPIRE', log, ARGV[4])
if owner == '' then
  return {0, before}
end
local known = redis.call('GETRANGE', record, 7, 10)
if #known == 4 and struct.unpack('>I4', known) < tonumber(ARGV[2]) then
  redis.call('SETRANGE', record, 7, struct.pack('>I4', tonumber(ARGV[2])))
end
return {1, before}
