-- Keeps a long text, or lengthens its life.
--
-- Invariant: what a text says never changes, as its key is its digest, and its life is never shortened. A text that
-- another key has sealed is replaced: that key may leave the ring while sessions still name the text.
--
-- KEYS  text
-- ARGV  life in milliseconds; unless the text should be there already, also the sealed text, whose first three bytes
--       are version and id of the key
-- Returns 1 if it is there, else 0.
local left = redis.call('PTTL', KEYS[1])
local life = math.max(left, tonumber(ARGV[1]))
local sealed = ARGV[2]
if sealed and redis.call('GETRANGE', KEYS[1], 0, 2) ~= string.sub(sealed, 1, 3) then
  redis.call('SET', KEYS[1], sealed, 'PX', life)
  return 1
end
if left == -2 then
  return 0
end
if left < life then
  redis.call('PEXPIRE', KEYS[1], life)
end
return 1
