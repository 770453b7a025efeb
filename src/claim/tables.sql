/* claim: the tables of keys.  Only src/claim/ writes them. */

CREATE TYPE idem_outcome AS ENUM
	('claimed', 'in_progress', 'completed', 'failed', 'mismatch');
COMMENT ON TYPE idem_outcome IS
	'Outcome of idem_claim: claimed (do the work), in_progress (another caller does the work now), completed and failed (done before, see response), mismatch (the key was used for another request).';

CREATE TYPE idem_answer AS (
	outcome     idem_outcome,
	token       bigint,
	attempt     integer,
	response    jsonb,
	retry_after interval);
COMMENT ON TYPE idem_answer IS
	'Result of idem_claim.';

/*
 * DROP EXTENSION locks relations in the order of their creation.  Our code uses
 * the same order: the sequence, the ring, the keys.
 */
CREATE SEQUENCE idempotency_internal.idem_token_seq AS bigint;
COMMENT ON SEQUENCE idempotency_internal.idem_token_seq IS
	'Fencing tokens of idem_claim, each larger than all earlier ones.';

/*
 * Which of the tables of keys are live (base/ring.c).  This table is not
 * dumped: a restored database begins with a new ring, and idem_key_redirect
 * moves the rows into its current segment.
 */
CREATE TABLE idempotency_internal.idem_ring (
	slot       smallint PRIMARY KEY CHECK (slot BETWEEN 0 AND 2),
	state      text NOT NULL CHECK (state IN ('current', 'old', 'retired', 'empty')),
	segment bigint UNIQUE,
	opened_at  timestamptz,
	closed_at  timestamptz,
	quiet_xid  xid8,
	rest_until timestamptz,
	CHECK ((state = 'empty') = (segment IS NULL)),
	CHECK ((state IN ('old', 'retired')) = (quiet_xid IS NOT NULL)),
	CONSTRAINT idem_ring_segment_check CHECK (segment > 0),
	CONSTRAINT idem_ring_times_check CHECK (
		pg_catalog.isfinite(opened_at) IS NOT FALSE
		AND pg_catalog.isfinite(closed_at) IS NOT FALSE
		AND pg_catalog.isfinite(rest_until) IS NOT FALSE)
);
COMMENT ON TABLE idempotency_internal.idem_ring IS
	'The segments of keys: new keys are inserted into the current one, old ones are searched too, retired ones wait to be truncated. When every transaction before quiet_xid has ended, no transaction inserts into an old segment any more.';
INSERT INTO idempotency_internal.idem_ring (slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);

/*
 * state: p in progress, c completed, f failed permanently, r failed and free
 * for the next claimer.  The columns of fixed width come first, since a claim
 * reads these.  The key comes first in the index, since it decides nearly
 * every comparison, and nothing is looked up by scope alone.  Vacuum gains
 * nothing from rows that are only inserted: index-only scans are not used, and
 * the rows are truncated before they need freezing.
 */
CREATE TABLE idempotency_internal.idem_key_0 (
	token       bigint NOT NULL,
	expires_at  timestamptz NOT NULL,
	attempt     integer NOT NULL,
	state       "char" NOT NULL CHECK (state IN ('p', 'c', 'f', 'r')),
	scope       text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(scope) <= 255),
	key         text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(key) BETWEEN 1 AND 255),
	lease_until timestamptz,
	request     bytea,
	response    jsonb,
	PRIMARY KEY (key, scope),
	CHECK ((state = 'p') = (lease_until IS NOT NULL)),
	CONSTRAINT idem_key_numbers_check CHECK (token > 0 AND attempt > 0),
	CONSTRAINT idem_key_times_check CHECK (expires_at < 'infinity'
		AND pg_catalog.isfinite(lease_until) IS NOT FALSE)
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.idem_key_1 (
	LIKE idempotency_internal.idem_key_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.idem_key_2 (
	LIKE idempotency_internal.idem_key_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);

CREATE VIEW idem_key AS
	SELECT * FROM idempotency_internal.idem_key_0
	WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT * FROM idempotency_internal.idem_key_1
	WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
	UNION ALL
	SELECT * FROM idempotency_internal.idem_key_2
	WHERE expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
COMMENT ON VIEW idem_key IS
	'Keys that have been claimed and have not expired; request is a SHA-256.';

CREATE FUNCTION idempotency_internal.idem_key_redirect()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_key_redirect() IS
	'Internal: a key that is inserted by hand, or restored, goes into the current segment.';

DO $$
BEGIN
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format('COMMENT ON TABLE idempotency_internal.idem_key_%s IS %L', slot,
			'A segment of keys. Written by the functions idem_* alone; see the view idem_key.');
		EXECUTE pg_catalog.format(
			'CREATE TRIGGER idem_key_redirect
				BEFORE INSERT ON idempotency_internal.idem_key_%s FOR EACH ROW
				EXECUTE FUNCTION idempotency_internal.idem_key_redirect()',
			slot);
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.idem_key_%s ENABLE ALWAYS TRIGGER idem_key_redirect', slot);
		PERFORM pg_catalog.pg_extension_config_dump(
			pg_catalog.format('idempotency_internal.idem_key_%s',
				slot)::pg_catalog.regclass,
			'WHERE expires_at > clock_timestamp()');
	END LOOP;
END
$$;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idem_token_seq', '');

/*
 * Scopes that have moved to another database, or are on their way (fence.c).
 * Every session knows whether there are any.
 */
CREATE TABLE idempotency_internal.idem_fence (
	scope     text COLLATE "C" PRIMARY KEY
		CHECK (pg_catalog.octet_length(scope) <= 255),
	fenced_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE idempotency_internal.idem_fence IS
	'Scopes in which no key can be claimed or finished, since they have moved to another database. See the view idem_fences.';
CREATE FUNCTION idempotency_internal.idem_fence_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_internal.idem_fence_changed() IS
	'Internal: makes every session look again whether there are fences.';
CREATE TRIGGER idem_fence_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
	ON idempotency_internal.idem_fence
	FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.idem_fence_changed();
ALTER TABLE idempotency_internal.idem_fence
	ENABLE ALWAYS TRIGGER idem_fence_changed;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idem_fence', '');
