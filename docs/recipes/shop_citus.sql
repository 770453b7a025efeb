-- On the coordinator of Citus. Orders are distributed by customer, and so is the
-- function that places one: it runs on the node that has the orders. The shard is
-- the scope of the request ids, so they can move with it.

CREATE TABLE orders (
	customer text NOT NULL,
	id       uuid,
	request  text NOT NULL,
	item     text NOT NULL,
	PRIMARY KEY (customer, id)
);
SELECT create_distributed_table('orders', 'customer', shard_count => 8);

-- Places an order once for each request, and returns its id.
CREATE FUNCTION place_order(request text, customer text, item text)
RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	shard CONSTANT bigint := get_shard_id_for_distribution_column('orders', customer);
	scope CONSTANT text := 'shard-' || shard;
	key   CONSTANT text := customer || '/' || request;
	claim  idem_answer;
	answer jsonb;
BEGIN
	-- A call that was not delegated must not claim here.
	IF NOT EXISTS (SELECT FROM pg_dist_placement p JOIN pg_dist_local_group g USING (groupid) WHERE p.shardid = shard) THEN
		RAISE EXCEPTION 'the orders of "%" are on another node', customer
			USING ERRCODE = '55000';
	END IF;

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

	answer := jsonb_build_object('order', gen_random_uuid(), 'request', request);
	INSERT INTO orders (customer, id, request, item)
	VALUES (place_order.customer, (answer ->> 'order')::uuid, place_order.request, place_order.item);
	PERFORM outbox_enqueue('order.placed', answer, key => customer);

	PERFORM idem_complete(key, claim.token, answer, scope => scope);
	RETURN answer;
END
$$;
SELECT create_distributed_function('place_order(text, text, text)', 'customer',
	colocate_with => 'orders', force_delegation => true);
