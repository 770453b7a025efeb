-- redis_stock.lua
--
-- What is replaced: counters in Redis, and a script that reserves. The product
-- has a counter of what is left, the order a hash of what it holds, and a
-- sorted set says until when.
--
-- KEYS: stock:SKU reservation:ORDER reservations
-- ARGV: sku, order, quantity, time of expiry in seconds
-- Answers key-missing, enough or not-enough, and what is left.

local left = redis.call('GET', KEYS[1])

if not left then
  return {'key-missing'}
end
if tonumber(left) < tonumber(ARGV[3]) then
  return {'not-enough', left}
end
left = redis.call('DECRBY', KEYS[1], ARGV[3])
redis.call('HINCRBY', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
return {'enough', left}
