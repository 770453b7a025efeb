-- Each shard has the orders of some buckets of customers. The bucket is the
-- scope of the request ids, so the ids of a bucket can move with its orders. The
-- key begins with the customer, who must not get the answers of others.

CREATE FUNCTION bucket(customer text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT ('x' || left(md5(customer), 8))::bit(32)::integer & 15
$$;

CREATE TABLE orders (
	id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	bucket   integer NOT NULL,
	request  text NOT NULL,
	customer text NOT NULL,
	item     text NOT NULL
);
CREATE INDEX ON orders (bucket);

-- Places an order once for each request, and returns its id.
CREATE FUNCTION place_order(request text, customer text, item text)
RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	scope CONSTANT text := 'bucket-' || bucket(customer);
	key   CONSTANT text := customer || '/' || request;
	claim  idem_answer;
	answer jsonb;
BEGIN
	claim := idem_claim(key, scope => scope, request => item);

	CASE claim.outcome
		WHEN 'claimed' THEN
			NULL;
		WHEN 'completed' THEN
			RETURN claim.response;
		WHEN 'mismatch' THEN
			RAISE EXCEPTION 'request "%" was made for another order', request
				USING ERRCODE = '22023';
	END CASE;

	INSERT INTO orders (bucket, request, customer, item)
	VALUES (bucket(customer), request, customer, item)
	RETURNING jsonb_build_object('order', id, 'request', orders.request) INTO answer;
	PERFORM outbox_enqueue('order.placed', answer, key => customer);

	PERFORM idem_complete(key, claim.token, answer, scope => scope);
	RETURN answer;
END
$$;
