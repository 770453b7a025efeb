/*
 * A shop that takes each order once.
 *
 * Clients lose connections, time out and try again. Some die halfway, and some
 * never pay. The shop needs no code for that: an order, its stock, its event and
 * the claim of its request are in one transaction. Either all of them are
 * committed, or none.
 */

/* ---- by the administrator, once ---- */

CREATE EXTENSION idempotency;

CREATE ROLE shop LOGIN;
SELECT idempotency_grant('shop');
CREATE SCHEMA shop AUTHORIZATION shop;

/* ---- by the application ---- */

SET ROLE shop;

CREATE SEQUENCE order_number;

/* request_id needs no unique constraint, because checkout claims it. */
CREATE TABLE orders (
	id         bigint PRIMARY KEY,
	request_id text NOT NULL,
	customer   text NOT NULL,
	lines      jsonb NOT NULL,
	status     text NOT NULL DEFAULT 'placed'
		CHECK (status IN ('placed', 'paid', 'expired')),
	placed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

/*
 * Places an order, once for each request_id, however often it is called.
 *
 * A refusal is saved as the answer too. Otherwise a customer could be told
 * "sold out", and a later copy of the same request could still buy something. A
 * customer who wants to try again makes a new request.
 */
CREATE FUNCTION checkout(request_id text, customer text, lines jsonb)
RETURNS jsonb
LANGUAGE plpgsql
AS $$
DECLARE
	claim    record;
	stock    record;
	order_id bigint;
	answer   jsonb;
BEGIN
	SELECT * INTO claim
	FROM idem_claim(request_id, scope => 'checkout',
		request => jsonb_build_array(customer, lines)::text);

	CASE claim.outcome
		WHEN 'claimed' THEN
			NULL;			/* this call does the work */
		WHEN 'completed' THEN
			RETURN claim.response || '{"replayed": true}';
		WHEN 'mismatch' THEN
			RETURN '{"status": "mismatch"}';	/* used for another order */
	END CASE;

	order_id := nextval('order_number');
	SELECT * INTO stock
	FROM stock_reserve_many(lines,
		reservation => 'order-' || order_id);

	IF stock.outcome = 'reserved' THEN
		INSERT INTO orders (id, request_id, customer, lines)
		VALUES (order_id, request_id, customer, lines);

		PERFORM outbox_enqueue('order.placed', key => 'order-' || order_id,
			payload => jsonb_build_object('order', order_id,
				'customer', customer, 'lines', lines));

		answer := jsonb_build_object('status', 'placed', 'order', order_id,
			'pay_before', stock.expires_at);
	ELSE
		answer := jsonb_build_object('status', stock.outcome,
			'shortages', stock.shortages);
	END IF;

	PERFORM idem_complete(request_id, claim.token, answer, scope => 'checkout');
	RETURN answer;
END
$$;

/*
 * Takes the payment of an order. It needs no claim: a reservation can be
 * confirmed once, and each later call returns how it ended.
 *
 * An order that is never paid needs no call: its reservation expires, its stock
 * is available again, and the event stock.expired is sent.
 */
CREATE FUNCTION pay(order_id bigint)
RETURNS stock_settlement
LANGUAGE plpgsql
AS $$
DECLARE
	outcome stock_settlement := stock_confirm('order-' || order_id);
BEGIN
	IF outcome = 'done' THEN
		UPDATE orders SET status = 'paid' WHERE id = order_id;
		PERFORM outbox_enqueue('order.paid', key => 'order-' || order_id,
			payload => jsonb_build_object('order', order_id));
	ELSIF outcome = 'expired' THEN
		UPDATE orders SET status = 'expired' WHERE id = order_id;
	END IF;
	RETURN outcome;
END
$$;

RESET ROLE;
