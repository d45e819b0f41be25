-- Lends requests out of the allowance of one principal.
--
-- Invariant: the allowance is a rate with a burst, by the clock of the store. What is lent never exceeds it; only
-- `charge`, requests that a replica served ahead, may.
--
-- KEYS  allowance: the time when it is full again, in microseconds
-- ARGV  time of one request in microseconds, requests of a full allowance, requests to charge (less than 0: given
--       back), requests wanted
-- Returns how many are lent, and after how many microseconds there is one, if there is none now.
local each, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = tonumber(redis.call('GET', KEYS[1]) or now)
-- What is more than two full allowances ahead was written before the clock was set back.
full = math.min(full, now + 2 * burst * each)
full = math.max(now, math.max(now, full) + tonumber(ARGV[3]) * each)
local room = math.floor((burst * each - (full - now)) / each)
local lent = math.max(0, math.min(tonumber(ARGV[4]), room))
full = full + lent * each
if full > now then
  redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000) + 1000)
else
  -- What was given back has filled it: the time that is kept is one to come.
  redis.call('DEL', KEYS[1])
end
local wait = 0
if lent == 0 then
  wait = math.max(0, full - now - (burst - 1) * each)
end
return {lent, math.ceil(wait)}
