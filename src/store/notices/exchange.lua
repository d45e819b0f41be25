-- Adds the notices of one replica, and reads those of the others.
--
-- Invariant: notices have one order for all replicas, and each replica reads each notice of the others once, or learns
-- that some are gone.
--
-- KEYS  notices
-- ARGV  where the replica has read up to (empty: nowhere yet), how many are kept, life in milliseconds; then the
--       notices to add
-- Returns where to read on, whether notices before may be gone (1 or 0), and the notices read.
local notices, from, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local found, gone = {}, 0
if from ~= '' then
  if from == '0-0' then
    gone = redis.call('XLEN', notices) >= most and 1 or 0
  elseif #redis.call('XRANGE', notices, from, from) == 0 then
    gone, from = 1, '0-0'
  end
  for _, entry in ipairs(redis.call('XRANGE', notices, '(' .. from, '+')) do
    found[#found + 1] = entry[2][2]
  end
end
for at = 4, #ARGV do
  redis.call('XADD', notices, 'MAXLEN', most, '*', 'n', ARGV[at])
end
local last = redis.call('XREVRANGE', notices, '+', '-', 'COUNT', 1)[1]
redis.call('PEXPIRE', notices, ARGV[3])
return {last and last[1] or '0-0', gone, found}
