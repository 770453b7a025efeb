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

/*
 * A queue as pgmq makes it, from its documentation: who reads a message makes it
 * invisible until vt, and deletes it when it is done.  Key and type are headers.
 */
CREATE TABLE peer_pgmq (
	msg_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	read_ct     integer NOT NULL DEFAULT 0,
	enqueued_at timestamptz NOT NULL DEFAULT now(),
	vt          timestamptz NOT NULL,
	message     jsonb,
	headers     jsonb
);
CREATE INDEX ON peer_pgmq (vt);

/*
 * Jobs as River keeps them, from its documentation, without its GIN indexes on
 * args and metadata and without its index of unique jobs.  Key and topic are
 * metadata.
 */
CREATE TYPE peer_river_state AS ENUM ('available', 'cancelled', 'completed',
	'discarded', 'pending', 'retryable', 'running', 'scheduled');
CREATE TABLE peer_river (
	id           bigserial PRIMARY KEY,
	state        peer_river_state NOT NULL DEFAULT 'available',
	attempt      smallint NOT NULL DEFAULT 0,
	max_attempts smallint NOT NULL CHECK (max_attempts > 0),
	attempted_at timestamptz,
	created_at   timestamptz NOT NULL DEFAULT now(),
	finalized_at timestamptz,
	scheduled_at timestamptz NOT NULL DEFAULT now(),
	priority     smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 1 AND 4),
	args         jsonb NOT NULL,
	attempted_by text[],
	errors       jsonb[],
	kind         text NOT NULL CHECK (length(kind) BETWEEN 1 AND 127),
	metadata     jsonb NOT NULL DEFAULT '{}',
	queue        text NOT NULL DEFAULT 'default'
		CHECK (length(queue) BETWEEN 1 AND 127),
	tags         varchar(255)[] NOT NULL DEFAULT '{}',
	CHECK ((finalized_at IS NOT NULL)
		= (state IN ('cancelled', 'completed', 'discarded')))
);
CREATE INDEX ON peer_river (state, queue, priority, scheduled_at, id);
CREATE INDEX ON peer_river (state, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX ON peer_river (kind);

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

CREATE PROCEDURE fill_pgmq(events integer, payload jsonb)
LANGUAGE sql AS $$
	TRUNCATE peer_pgmq RESTART IDENTITY;
	INSERT INTO peer_pgmq (vt, message, headers)
		SELECT clock_timestamp(), payload, jsonb_build_object(
			'key', 'customer-' || n % 1000, 'topic', 'order', 'type', 'placed')
		FROM generate_series(1, events) n;
$$;

CREATE PROCEDURE fill_river(events integer, payload jsonb)
LANGUAGE sql AS $$
	TRUNCATE peer_river RESTART IDENTITY;
	INSERT INTO peer_river (kind, args, metadata, max_attempts)
		SELECT 'placed', payload, jsonb_build_object(
			'key', 'customer-' || n % 1000, 'topic', 'order'), 25
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
