-- Tells the time of the server that has the record of a session.
--
-- Invariant: changes nothing.
--
-- KEYS  record
-- Returns milliseconds since the Unix epoch.
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)
