-- The state machine of a claim as a Redis user writes it: a hash for each key,
-- in progress under a lease with a fencing token, then completed with an
-- answer. Both steps are one call here, which is in favour of Redis: an
-- application makes two, around its work.
--
-- KEYS: the key. ARGV: hash of the request, lease and ttl in ms, answer.

local function now_ms()
	local time = redis.call('TIME')
	return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function claim(key, request, lease_ms)
	local row = redis.call('HMGET', key, 'state', 'attempt', 'lease_until', 'request', 'answer')
	local now = now_ms()
	if row[1] then
		if row[4] ~= request then
			return 'mismatch'
		elseif row[1] == 'completed' then
			return 'completed', row[5]
		elseif tonumber(row[3]) > now then
			return 'in_progress', tonumber(row[3]) - now
		end
	end
	local token = redis.call('INCR', 'token')
	redis.call('HSET', key, 'state', 'in_progress', 'token', token,
		'attempt', (row[2] or 0) + 1, 'lease_until', now + lease_ms, 'request', request)
	return 'claimed', token
end

local function complete(key, token, ttl_ms, answer)
	local row = redis.call('HMGET', key, 'state', 'token')
	if row[1] ~= 'in_progress' or tonumber(row[2]) ~= token then
		return 'lease_lost'
	end
	redis.call('HSET', key, 'state', 'completed', 'answer', answer)
	redis.call('PEXPIRE', key, ttl_ms)
	return 'claimed', token
end

local outcome, detail = claim(KEYS[1], ARGV[1], ARGV[2])
if outcome == 'claimed' then
	outcome, detail = complete(KEYS[1], detail, ARGV[3], ARGV[4])
end
return {outcome, detail}
