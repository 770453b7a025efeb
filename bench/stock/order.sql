/*
 * An order, placed once however often the shop asks: claim, reservation, row,
 * event and answer in one transaction; and the same as an application would
 * write it for itself.
 */

CREATE TABLE shop_order (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	placed_at  timestamptz NOT NULL DEFAULT now(),
	request    text NOT NULL,
	skus       text[] NOT NULL
);

CREATE FUNCTION place_order(request text, skus text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	claim    idem_answer := idem_claim(request);
	reserved stock_reservation;
	answer   jsonb;
BEGIN
	IF claim.outcome <> 'claimed' THEN
		RETURN claim.response;
	END IF;
	reserved := stock_reserve_many(
		jsonb_build_object(skus[1], 1, skus[2], 1, skus[3], 1), request);
	IF reserved.outcome = 'reserved' THEN
		INSERT INTO shop_order (request, skus) VALUES (request, skus)
		RETURNING jsonb_build_object('order', id) INTO answer;
		PERFORM outbox_enqueue('order', answer, key => request, type => 'placed');
	ELSE
		answer := jsonb_build_object('shortages', reserved.shortages);
	END IF;
	PERFORM idem_complete(request, claim.token, answer);
	RETURN answer;
END
$$;

CREATE TABLE peer_key (
	key      text PRIMARY KEY,
	at       timestamptz NOT NULL DEFAULT now(),
	response jsonb
);

CREATE TABLE peer_order_log (
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL DEFAULT clock_timestamp(),
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C" NOT NULL,
	actor       text NOT NULL DEFAULT session_user,
	PRIMARY KEY (reservation, sku)
);

CREATE TABLE peer_outbox (
	id         bigserial PRIMARY KEY,
	created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	topic      text NOT NULL,
	key        text,
	type       text,
	payload    jsonb NOT NULL
);

/*
 * Rows are locked in the order of their names, or two orders would deadlock.
 * All that can come before that does, so that they are locked for as short a
 * time as can be.
 */
CREATE FUNCTION place_order_by_hand(request text, skus text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
	line   text;
BEGIN
	INSERT INTO peer_key (key) VALUES (request) ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		SELECT response INTO answer FROM peer_key WHERE key = request;
		RETURN answer;
	END IF;
	INSERT INTO shop_order (request, skus) VALUES (request, skus)
	RETURNING jsonb_build_object('order', id) INTO answer;
	INSERT INTO peer_outbox (topic, key, type, payload)
	VALUES ('order', request, 'placed', answer);
	UPDATE peer_key SET response = answer WHERE key = request;
	INSERT INTO peer_order_log (sku, quantity, reservation)
		SELECT sku, count(*), request FROM unnest(skus) sku GROUP BY sku;
	FOR line IN SELECT sku FROM unnest(skus) sku ORDER BY sku COLLATE "C" LOOP
		UPDATE peer_item SET available = available - 1
		WHERE sku = line AND available >= 1;
		IF NOT FOUND THEN
			RAISE EXCEPTION 'there is not enough' USING ERRCODE = 'check_violation';
		END IF;
	END LOOP;
	RETURN answer;
END
$$;
