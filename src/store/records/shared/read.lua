-- Reads one record or text.
--
-- Invariant: changes nothing.
--
-- KEYS  record or text
-- Returns it, or nothing without one.
return redis.call('GET', KEYS[1])
