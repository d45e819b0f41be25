-- Gives a lease up when its replica stops.
--
-- Invariant: only the lease of this very process is removed.
--
-- KEYS[1]  the lease of the node           ARGV[1]  the record
-- KEYS[2]  index of nodes by end of lease  ARGV[2]  the node
--                                          ARGV[3]  the record of the same process before this one, or empty

local present = redis.call('GET', KEYS[1])
if present and (present == ARGV[1] or present == ARGV[3]) then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], ARGV[2])
end
return redis.status_reply('OK')
