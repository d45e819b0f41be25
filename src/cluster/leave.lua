-- Gives a lease up when its replica stops.
--
-- Invariant: only the lease of this very record is removed.
--
-- KEYS[1]  the lease of the node           ARGV[1]  the record
-- KEYS[2]  index of nodes by end of lease  ARGV[2]  the node

if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], ARGV[2])
end
return redis.status_reply('OK')
