-- Keeps a long text, or lengthens its life.
--
-- Invariant: a text never changes, as its key is its digest, and its life is never shortened.
--
-- KEYS  text
-- ARGV  life in milliseconds; unless the text should be there already, also the sealed text
-- Returns 1 if it is there, else 0.
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  if not ARGV[2] then
    return 0
  end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
  return 1
end
if left < tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
