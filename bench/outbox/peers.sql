/*
 * What the outbox is measured against: the table that an application would
 * write for itself, read as a queue in two ways, and PgQ.
 */

CREATE EXTENSION idempotency;
CREATE EXTENSION pgq;

/*
 * The columns are those of our log.  The transaction id belongs there: who
 * reads a table by rising ids alone skips what commits late.
 */
CREATE TABLE peer_outbox (
	id         bigserial PRIMARY KEY,
	xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
	created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	deliver_at timestamptz,
	topic      text NOT NULL,
	key        text,
	type       text,
	payload    jsonb NOT NULL,
	headers    jsonb
);

/* Queues: a row is taken by a change of its state, or by its deletion. */
CREATE TABLE peer_update (
	LIKE peer_outbox INCLUDING ALL,
	state text NOT NULL DEFAULT 'new'
);
CREATE INDEX ON peer_update (id) WHERE state = 'new';
CREATE TABLE peer_delete (LIKE peer_outbox INCLUDING ALL);

/* With a largest count of 1, each call of the ticker makes a tick. */
SELECT pgq.create_queue('bench'), pgq.set_queue_config('bench', 'ticker_max_count', '1'),
	pgq.register_consumer('bench', 'reader')
\g /dev/null

CREATE PROCEDURE fill_update(events integer, payload jsonb)
LANGUAGE sql AS $$
	TRUNCATE peer_update;
	INSERT INTO peer_update (topic, key, type, payload)
		SELECT 'order', 'customer-' || n % 1000, 'placed', payload
		FROM generate_series(1, events) n;
$$;

CREATE PROCEDURE fill_delete(events integer, payload jsonb)
LANGUAGE sql AS $$
	TRUNCATE peer_delete;
	INSERT INTO peer_delete (topic, key, type, payload)
		SELECT 'order', 'customer-' || n % 1000, 'placed', payload
		FROM generate_series(1, events) n;
$$;

/*
 * A batch of PgQ is what lies between two ticks, hence a tick after each batch.
 */
CREATE PROCEDURE fill_pgq(events integer, payload jsonb, batch integer)
LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. events / batch LOOP
		PERFORM pgq.insert_event('bench', 'placed', payload::text,
			'customer-' || n % 1000, 'order', NULL, NULL)
		FROM generate_series(1, batch) n;
		COMMIT;
		IF pgq.ticker('bench') IS NULL THEN
			RAISE EXCEPTION 'PgQ made no tick after % events', batch;
		END IF;
		COMMIT;
	END LOOP;
END
$$;
