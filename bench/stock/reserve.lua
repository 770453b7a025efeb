-- A reservation as a Redis user writes it: a counter for each item, and a key
-- for each reservation, by which a retry books nothing. It has no log, and no
-- list of what is reserved.
--
-- KEYS: the counter, the reservation. ARGV: quantity, ttl in s.

local available = redis.call('GET', KEYS[1])
if not available then
	return {'key missing'}
end
if redis.call('EXISTS', KEYS[2]) == 1 then
	return {'enough'}
end
local left = tonumber(available) - tonumber(ARGV[1])
if left < 0 then
	return {'not enough', tonumber(available)}
end
redis.call('DECRBY', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[2])
return {'enough', left}
