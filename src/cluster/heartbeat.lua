-- One heartbeat of a replica: renews its lease, or takes it, and answers the records of all replicas with a lease.
--
-- Invariant: the lease of a node belongs to one record at a time, which the value of its key says. A key that holds
-- another record is never written, but for the former record of the same process: of two processes that drew the same
-- number the second one gets 'taken'. The index only lists where leases may be; an entry without a lease means nothing.
--
-- KEYS[1]  the lease of the node           ARGV[1]  the record
-- KEYS[2]  index of nodes by end of lease  ARGV[2]  length of the lease, milliseconds
--                                          ARGV[3]  the node
--                                          ARGV[4]  what the keys of leases begin with, in the slot of KEYS
--                                          ARGV[5]  the record of the same process before this one, or empty
--
-- Answers the state and the records: 'held' (renewed), 'new' (there was no lease: the first one, or it was lost), or
-- 'taken', without records.

local present = redis.call('GET', KEYS[1])
if present and present ~= ARGV[1] and present ~= ARGV[5] then
    return {'taken'}
end
local length = tonumber(ARGV[2])
if present then
    -- This is allowed in a full Redis, and so is every write of a script after the first one: leases hold there.
    redis.call('PEXPIRE', KEYS[1], length)
    if present ~= ARGV[1] then
        redis.call('SET', KEYS[1], ARGV[1], 'PX', length)
    end
else
    redis.call('SET', KEYS[1], ARGV[1], 'PX', length)
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[2], now + length, ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
-- As long as a lease, after the last replica.
redis.call('PEXPIRE', KEYS[2], length)
local answer = {present and 'held' or 'new'}
for _, node in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local record = redis.call('GET', ARGV[4] .. node)
    if record then
        answer[#answer + 1] = record
    end
end
return answer
