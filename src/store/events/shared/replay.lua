-- Reads entries of the event log of one session, oldest first.
--
-- Invariant: changes nothing.
--
-- KEYS  log
-- ARGV  number after which to begin, how many entries at most
-- Returns number and content of each entry.
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])) do
  found[#found + 1] = string.match(entry[1], '^%d+')
  found[#found + 1] = entry[2][2]
end
return found
