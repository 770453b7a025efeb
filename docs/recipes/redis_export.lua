-- redis_export.lua
--
-- Returns all counters and reservations of redis_stock.lua at one moment, as
-- JSON: {"stock": {sku: left}, "reservations": {order: {"expires", "lines"}}}.
-- Numbers are strings, and lines a list of sku, quantity, sku, quantity ...

local stock, reservations = {}, {}

for _, key in ipairs(redis.call('KEYS', 'stock:*')) do
  stock[string.sub(key, #'stock:' + 1)] = redis.call('GET', key)
end
for _, order in ipairs(redis.call('ZRANGE', 'reservations', 0, -1)) do
  reservations[order] = {
    expires = redis.call('ZSCORE', 'reservations', order),
    lines = redis.call('HGETALL', 'reservation:' .. order)
  }
end
return cjson.encode({stock = stock, reservations = reservations})
