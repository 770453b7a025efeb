-- The tables of redis_stock.js. The customer is checked only at the commit,
-- after the stock was reserved.

CREATE TABLE customers (
	name text PRIMARY KEY
);

CREATE TABLE bookings (
	order_name text PRIMARY KEY,
	customer   text NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
	sku        text NOT NULL,
	quantity   bigint NOT NULL,
	state      text NOT NULL DEFAULT 'booked'
		CHECK (state IN ('booked', 'cancelled', 'final'))
);

-- Returns the answers of the Lua script, for callers that expect them.
CREATE FUNCTION reserve_stock(
	sku text, quantity bigint, order_name text, ttl interval,
	OUT answer text, OUT remaining bigint)
LANGUAGE plpgsql
AS $$
DECLARE
	stock stock_reservation := stock_reserve(sku, quantity, order_name, ttl);
BEGIN
	answer := CASE stock.outcome
		WHEN 'reserved' THEN 'enough'
		WHEN 'insufficient' THEN 'not-enough'
		WHEN 'unknown_sku' THEN 'key-missing'
	END;
	remaining := (stock.shortages -> 0 -> 'available')::bigint;
END
$$;
