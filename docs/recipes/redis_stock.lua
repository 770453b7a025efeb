-- redis_stock.lua
--
-- The script that redis_stock.js replaces: it reserves with counters in Redis.
-- A product has a counter with its available quantity, an order has a hash with
-- its quantities, and a sorted set has the times of expiry.
--
-- KEYS: stock:SKU reservation:ORDER reservations
-- ARGV: sku, order, quantity, time of expiry in seconds
-- Returns key-missing, enough or not-enough, and the quantity that is left.

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
