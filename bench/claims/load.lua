-- The known keys, as redis-benchmark spells its random numbers: plain ones for
-- SET NX, completed ones for state.lua.
--
-- ARGV: how many, suffix of a key, hash of the request, answer.

for n = 0, ARGV[1] - 1 do
	local key = string.format('%012d', n) .. ARGV[2]
	redis.call('SET', 'set:' .. key, ARGV[4], 'EX', 86400)
	redis.call('HSET', 'state:' .. key, 'state', 'completed', 'token', n, 'attempt', 1,
		'lease_until', 0, 'request', ARGV[3], 'answer', ARGV[4])
	redis.call('EXPIRE', 'state:' .. key, 86400)
end
return ARGV[1]
