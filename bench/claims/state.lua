-- The state machine of a claim as a Redis user writes it: a hash for each key,
-- in progress under a lease with a fencing token, then completed with an
-- answer. An application makes two calls, around its work. Both steps can also
-- be one call, and one call can be for many keys.
--
-- KEYS: the keys. ARGV: "claim", hash of the request, lease in ms; "complete",
-- token, ttl in ms, answer; or "both", hash, lease, ttl and answer. Returns an
-- outcome and a detail: of the last key.

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
		error('lease lost')
	end
	redis.call('HSET', key, 'state', 'completed', 'answer', answer)
	redis.call('PEXPIRE', key, ttl_ms)
	return 'claimed', token
end

local outcome, detail
for _, key in ipairs(KEYS) do
	if ARGV[1] == 'complete' then
		outcome, detail = complete(key, tonumber(ARGV[2]), ARGV[3], ARGV[4])
	else
		outcome, detail = claim(key, ARGV[2], ARGV[3])
		if ARGV[1] == 'both' and outcome == 'claimed' then
			outcome, detail = complete(key, detail, ARGV[4], ARGV[5])
		end
	end
end
return {outcome, detail}
