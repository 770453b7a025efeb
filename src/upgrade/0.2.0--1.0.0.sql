/*
 * From 0.2.0 to 1.0.0.  lock.sql has the rules.
 *
 * The library of 1.0.0 and later refuses to work with objects of 0.2.0
 * (base/catalog.c), and there are no workers, until this has committed.  So no
 * client can see a state in between: calls raise an error before the commit.
 *
 * The blocks below are in the order in which the tables were created.
 */

/* ---- the internal schema ---- */

/*
 * Sequences that belong to a column move with its table.  If a schema of this
 * name exists, it has to be renamed first.
 */
DO $$
DECLARE
	tables    CONSTANT text[] := '{
		idem_ring, idem_key_0, idem_key_1, idem_key_2,
		outbox_ring, outbox_log_0, outbox_log_1, outbox_log_2,
		outbox_subscription, outbox_lane, outbox_delivery, outbox_attempt,
		outbox_home,
		stock_log, stock_hold, stock_item, stock_ring, stock_history_0,
		stock_history_1, stock_history_2}';
	sequences CONSTANT text[] := '{idem_token_seq, outbox_position_seq}';
	views     CONSTANT text[] := '{stock_books}';
	functions CONSTANT text[] := '{
		idempotency_require_preload, idempotency_ring_changed,
		idempotency_next_xid, idempotency_ring_switch,
		idempotency_ring_truncate, idempotency_is_quiet,
		idempotency_grant_names,
		idem_key_redirect, idem_count_expired, idem_switch, idem_carry,
		idem_retire, idem_truncate, idem_sample, idem_next_to_empty,
		idem_expire, idem_counters,
		outbox_check_event, outbox_subscription_deleted,
		outbox_delivery_deleted, outbox_log_insert, outbox_wake,
		outbox_check_headers, outbox_start_position, outbox_lane_number,
		outbox_rate, outbox_milliseconds, outbox_check_subscription,
		outbox_subscription_id, outbox_flights, outbox_switch,
		outbox_lanes_behind, outbox_truncate, outbox_pass_over,
		outbox_warn_behind, outbox_log_size, outbox_expire_log, outbox_expire,
		outbox_check_url, outbox_check_secret,
		stock_check_sku, stock_expire, stock_announce, stock_announce_available,
		stock_guard, stock_counters, stock_crowded, stock_count_compacted,
		stock_archive, stock_compact_item, stock_compact_next, stock_compact,
		stock_forget}';
	owner     regrole;
	member    record;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	SELECT extowner INTO STRICT owner FROM pg_extension WHERE extname = 'idempotency';
	EXECUTE format('CREATE SCHEMA idempotency_internal AUTHORIZATION %s', owner);
	FOR member IN
		SELECT format('%s %s', k.kind, c.oid::regclass) AS name
		FROM pg_class c
		JOIN (SELECT 'TABLE', unnest(tables)
			UNION ALL SELECT 'SEQUENCE', unnest(sequences)
			UNION ALL SELECT 'VIEW', unnest(views)) k(kind, name)
			ON k.name = c.relname
		WHERE c.relnamespace = '@extschema@'::regnamespace
		UNION ALL
		SELECT format('FUNCTION %s', p.oid::regprocedure)
		FROM pg_proc p
		WHERE p.pronamespace = '@extschema@'::regnamespace AND p.proname = ANY (functions)
			AND EXISTS (SELECT FROM pg_depend d
				JOIN pg_extension e ON e.oid = d.refobjid
				WHERE e.extname = 'idempotency' AND d.refclassid = 'pg_extension'::regclass
					AND d.classid = 'pg_proc'::regclass AND d.objid = p.oid
					AND d.deptype = 'e')
	LOOP
		EXECUTE format('ALTER %s SET SCHEMA idempotency_internal', member.name);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;

/* ---- rings ---- */

DROP FUNCTION idempotency_internal.idempotency_ring_truncate(
	regclass, text, text);
DROP FUNCTION idempotency_internal.idempotency_is_quiet(xid8);

/* ---- claims ---- */

/* A retired segment waits for snapshots that are older than this. */
UPDATE idempotency_internal.idem_ring
SET quiet_xid = idempotency_internal.idempotency_next_xid()
WHERE state = 'retired';

DO $$
DECLARE
	ring text;
BEGIN
	FOREACH ring IN ARRAY ARRAY['idem_ring', 'outbox_ring', 'stock_ring'] LOOP
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.%I RENAME COLUMN generation TO segment', ring);
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.%I RENAME CONSTRAINT %I TO %I', ring,
			ring || '_generation_key', ring || '_segment_key');
		EXECUTE pg_catalog.format($alter$
			ALTER TABLE idempotency_internal.%I
				ADD CONSTRAINT idem_ring_segment_check CHECK (segment > 0),
				ADD CONSTRAINT idem_ring_times_check CHECK (
					pg_catalog.isfinite(opened_at) IS NOT FALSE
					AND pg_catalog.isfinite(closed_at) IS NOT FALSE
					AND pg_catalog.isfinite(rest_until) IS NOT FALSE)
			$alter$, ring);
	END LOOP;
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format($alter$
			ALTER TABLE idempotency_internal.idem_key_%s
				ADD CONSTRAINT idem_key_numbers_check
					CHECK (token > 0 AND attempt > 0),
				ADD CONSTRAINT idem_key_times_check CHECK (expires_at < 'infinity'
					AND pg_catalog.isfinite(lease_until) IS NOT FALSE)
			$alter$, slot);
		EXECUTE pg_catalog.format('COMMENT ON TABLE idempotency_internal.idem_key_%s IS %L', slot,
			'A segment of keys. Written by the functions idem_* alone; see the view idem_key.');
	END LOOP;
END
$$;

DROP FUNCTION idempotency_internal.idem_carry(integer, smallint);
DROP FUNCTION idempotency_internal.idem_retire(smallint);

CREATE TABLE idempotency_internal.idem_fence (
	scope     text COLLATE "C" PRIMARY KEY
		CHECK (pg_catalog.octet_length(scope) <= 255),
	fenced_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE FUNCTION idempotency_internal.idem_fence_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
CREATE TRIGGER idem_fence_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
	ON idempotency_internal.idem_fence
	FOR EACH STATEMENT
	EXECUTE FUNCTION idempotency_internal.idem_fence_changed();
ALTER TABLE idempotency_internal.idem_fence
	ENABLE ALWAYS TRIGGER idem_fence_changed;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.idem_fence', '');

/* ---- outbox ---- */

ALTER TABLE idempotency_internal.outbox_ring
	ADD CONSTRAINT outbox_ring_last_position_check CHECK (last_position >= 0);
DO $$
BEGIN
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format($alter$
			ALTER TABLE idempotency_internal.outbox_log_%s
				ADD COLUMN expires_at timestamptz,
				ADD CONSTRAINT outbox_log_position_check CHECK (position > 0),
				ADD CONSTRAINT outbox_log_created_at_check
					CHECK (pg_catalog.isfinite(created_at)),
				ADD CONSTRAINT outbox_log_expires_at_check
					CHECK (pg_catalog.isfinite(expires_at) IS NOT FALSE)
			$alter$, slot);
	END LOOP;
END
$$;

/*
 * Rows that 0.2.0 accepted but 1.0.0 does not: arrays of several dimensions,
 * and a first wait other than 0.  The functions get their bodies below.
 */
DO $$
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	UPDATE idempotency_internal.outbox_subscription s
	SET topics = ARRAY(SELECT t FROM unnest(s.topics) t),
		retry_schedule = CASE WHEN r.schedule[1] <> '0'
			THEN interval '0' || r.schedule[:99] ELSE r.schedule END
	FROM idempotency_internal.outbox_subscription o
	CROSS JOIN LATERAL (
		SELECT ARRAY(SELECT w FROM unnest(o.retry_schedule) w) AS schedule) r
	WHERE o.id = s.id
		AND (array_ndims(s.topics) > 1 OR array_ndims(s.retry_schedule) > 1);
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
CREATE FUNCTION idempotency_internal.outbox_check_subscription_row(
	name text, url text, topics text[], secret text, old_secret text,
	headers jsonb, format text, ordered boolean, max_in_flight integer,
	timeout interval, retry_schedule interval[], partitions integer,
	state text, rate_limit numeric, batch integer, filter jsonpath,
	signing_key text, old_signing_key text, authorization_file text,
	client_certificate text, priority integer, keep_deliveries interval)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT true';
ALTER TABLE idempotency_internal.outbox_subscription
	ADD COLUMN recovered_at timestamptz,
	ADD COLUMN rate_limit numeric,
	ADD COLUMN batch integer NOT NULL DEFAULT 1,
	ADD COLUMN filter jsonpath,
	ADD COLUMN signing_key text,
	ADD COLUMN old_signing_key text,
	ADD COLUMN old_key_until timestamptz,
	ADD COLUMN authorization_file text,
	ADD COLUMN client_certificate text,
	ADD COLUMN priority integer NOT NULL DEFAULT 1,
	ADD COLUMN keep_deliveries interval,
	ALTER COLUMN url DROP NOT NULL,
	ALTER COLUMN secret DROP NOT NULL,
	DROP CONSTRAINT IF EXISTS outbox_subscription_format_check,
	DROP CONSTRAINT IF EXISTS outbox_subscription_max_in_flight_check,
	DROP CONSTRAINT IF EXISTS outbox_subscription_partitions_check,
	DROP CONSTRAINT IF EXISTS outbox_subscription_state_check,
	ADD CONSTRAINT outbox_subscription_row_check CHECK (
		idempotency_internal.outbox_check_subscription_row(
			name, url, topics, secret, old_secret, headers, format, ordered,
			max_in_flight, timeout, retry_schedule, partitions, state,
			rate_limit, batch, filter, signing_key, old_signing_key,
			authorization_file, client_certificate, priority, keep_deliveries));
ALTER TABLE idempotency_internal.outbox_lane RENAME TO outbox_partition;
ALTER TABLE idempotency_internal.outbox_partition
	RENAME COLUMN lane TO number;
ALTER TABLE idempotency_internal.outbox_delivery
	RENAME COLUMN lane TO partition;
DO $$
DECLARE
	renamed record;
BEGIN
	SET LOCAL search_path = pg_catalog, pg_temp;
	-- Since PostgreSQL 18, also the names of NOT NULL constraints.
	FOR renamed IN
		SELECT conrelid::regclass AS relation, conname AS old_name,
			replace(replace(replace(conname,
				'outbox_delivery_lane_', 'outbox_delivery_partition_'),
				'outbox_lane_lane_', 'outbox_partition_number_'),
				'outbox_lane_', 'outbox_partition_') AS new_name
		FROM pg_constraint
		WHERE conrelid IN (
				'idempotency_internal.outbox_partition'::regclass,
				'idempotency_internal.outbox_delivery'::regclass)
			AND conname ~ '^outbox_(delivery_)?lane_'
	LOOP
		EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I',
			renamed.relation, renamed.old_name, renamed.new_name);
	END LOOP;
	SET LOCAL search_path = @extschema@, pg_temp;
END
$$;
ALTER FUNCTION idempotency_internal.outbox_lane_number(text, bigint, integer)
	RENAME TO outbox_partition_number;
DROP FUNCTION idempotency_internal.outbox_lanes_behind(bigint);
ALTER TABLE idempotency_internal.outbox_partition
	ADD COLUMN head smallint,
	ADD COLUMN filtered bigint NOT NULL DEFAULT 0,
	ADD COLUMN filter_errors bigint NOT NULL DEFAULT 0,
	ADD COLUMN token bigint,
	ADD COLUMN leased_until timestamptz,
	ADD COLUMN leased_position bigint,
	ADD COLUMN leased_stragglers xid8[],
	ADD COLUMN leased_froms bigint[],
	ADD COLUMN leased_count integer NOT NULL DEFAULT 0,
	ADD COLUMN leased_events bigint[],
	ADD COLUMN lapsed_to bigint NOT NULL DEFAULT 0,
	ADD CONSTRAINT outbox_partition_number_check
		CHECK (subscription > 0 AND number BETWEEN 0 AND 63),
	ADD CONSTRAINT outbox_partition_position_check CHECK (position >= 0),
	ADD CONSTRAINT outbox_partition_stragglers_check CHECK (
		CASE WHEN pg_catalog.array_ndims(stragglers) > 1
			OR pg_catalog.array_ndims(straggler_froms) > 1 THEN false
			ELSE pg_catalog.array_position(stragglers, NULL) IS NULL
				AND pg_catalog.array_position(straggler_froms, NULL) IS NULL
			END),
	ADD CONSTRAINT outbox_partition_counts_check CHECK (
		lost >= 0 AND delivered >= 0
		AND filtered >= 0 AND filter_errors >= 0
		AND rate BETWEEN '0' AND '1e15' AND pg_catalog.isfinite(moved_at)),
	ADD CONSTRAINT outbox_partition_lease_check CHECK (
		(token > 0) IS NOT FALSE AND leased_count >= 0 AND lapsed_to >= 0
		AND pg_catalog.isfinite(leased_until) IS NOT FALSE
		AND (leased_until IS NULL OR token IS NOT NULL)
		AND (pg_catalog.array_ndims(leased_events) > 1) IS NOT TRUE
		AND pg_catalog.array_position(leased_events, NULL) IS NULL);
CREATE TABLE idempotency_internal.outbox_head (
	relay           smallint PRIMARY KEY,
	position        bigint NOT NULL,
	stragglers      xid8[] NOT NULL,
	straggler_froms bigint[] NOT NULL,
	CHECK (pg_catalog.cardinality(stragglers) OPERATOR(pg_catalog.=)
		pg_catalog.cardinality(straggler_froms)),
	CONSTRAINT outbox_head_position_check
		CHECK (relay >= 0 AND position >= 0),
	CONSTRAINT outbox_head_stragglers_check CHECK (
		CASE WHEN pg_catalog.array_ndims(stragglers) > 1
			OR pg_catalog.array_ndims(straggler_froms) > 1 THEN false
			ELSE pg_catalog.array_position(stragglers, NULL) IS NULL
				AND pg_catalog.array_position(straggler_froms, NULL) IS NULL
			END)
) WITH (fillfactor = 50);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_head', '');
CREATE INDEX outbox_delivery_last_at_idx
	ON idempotency_internal.outbox_delivery
		(subscription, partition, last_at NULLS FIRST, position)
	WHERE state = 'waiting';
ALTER TABLE idempotency_internal.outbox_delivery
	ADD COLUMN expires_at timestamptz,
	ADD COLUMN deliver_at timestamptz;
ALTER TABLE idempotency_internal.outbox_delivery
	ADD CONSTRAINT outbox_delivery_number_check CHECK (
		subscription > 0 AND partition BETWEEN 0 AND 63
		AND position > 0 AND attempts >= 0),
	ADD CONSTRAINT outbox_delivery_key_check
		CHECK (key IS NOT NULL OR NOT blocks_key),
	ADD CONSTRAINT outbox_delivery_times_check CHECK (
		pg_catalog.isfinite(created_at)
		AND pg_catalog.isfinite(due_at) IS NOT FALSE
		AND pg_catalog.isfinite(last_at) IS NOT FALSE
		AND pg_catalog.isfinite(expires_at) IS NOT FALSE
		AND pg_catalog.isfinite(deliver_at) IS NOT FALSE),
	ADD CONSTRAINT outbox_delivery_event_check CHECK (CASE WHEN state <> 'dead' THEN
		idempotency_internal.outbox_check_event(
			topic, 'null', key, type, headers, NULL) ELSE true END);
-- A primary key may have been added, as logical replication of updates needs
-- one.
DO $$
DECLARE
	added name;
BEGIN
	SELECT conname INTO added FROM pg_catalog.pg_constraint
	WHERE conrelid = 'idempotency_internal.outbox_attempt'::pg_catalog.regclass AND contype = 'p';
	IF FOUND THEN
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.outbox_attempt DROP CONSTRAINT %I', added);
	END IF;
END
$$;
ALTER TABLE idempotency_internal.outbox_attempt
	ADD PRIMARY KEY (subscription, position, attempt, at),
	ADD CONSTRAINT outbox_attempt_number_check
		CHECK (attempt > 0 AND duration_ms >= 0),
	ADD CONSTRAINT outbox_attempt_at_check CHECK (pg_catalog.isfinite(at));
DROP INDEX idempotency_internal.outbox_attempt_event_idx;
CREATE TABLE idempotency_internal.outbox_cancelled (
	position     bigint PRIMARY KEY,
	cancelled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
	swept        boolean NOT NULL DEFAULT false,
	CONSTRAINT outbox_cancelled_position_check CHECK (position > 0)
);
CREATE INDEX outbox_cancelled_unswept_idx
	ON idempotency_internal.outbox_cancelled (cancelled_at) WHERE NOT swept;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_cancelled', '');
ALTER TABLE idempotency_internal.outbox_home ADD COLUMN timeline integer;
UPDATE idempotency_internal.outbox_home
SET timeline = ('x' OPERATOR(pg_catalog.||) pg_catalog.left(
	pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()),
	8))::bit(32)::integer;
CREATE TABLE idempotency_internal.outbox_registered_topic (
	topic       text COLLATE "C" PRIMARY KEY,
	schema      jsonb,
	description text,
	created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
	changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
	CONSTRAINT outbox_registered_topic_topic_check
		CHECK (pg_catalog.octet_length(topic) BETWEEN 1 AND 255),
	CONSTRAINT outbox_registered_topic_schema_check
		CHECK (pg_catalog.jsonb_typeof(schema) IN ('object', 'boolean'))
);
CREATE FUNCTION idempotency_internal.outbox_topic_changed()
RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME';
CREATE TRIGGER outbox_topic_changed
	AFTER INSERT OR UPDATE OR DELETE
	ON idempotency_internal.outbox_registered_topic
	FOR EACH ROW EXECUTE FUNCTION idempotency_internal.outbox_topic_changed();
ALTER TABLE idempotency_internal.outbox_registered_topic
	ENABLE ALWAYS TRIGGER outbox_topic_changed;
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_registered_topic', '');
CREATE TABLE idempotency_internal.outbox_history_ring (
	LIKE idempotency_internal.idem_ring INCLUDING ALL);
-- The name of the column in the index of idem_ring is still the old one.
ALTER TABLE idempotency_internal.outbox_history_ring
	RENAME CONSTRAINT outbox_history_ring_generation_key
	TO outbox_history_ring_segment_key;
INSERT INTO idempotency_internal.outbox_history_ring
	(slot, state, segment, opened_at)
VALUES (0, 'current', 1, pg_catalog.clock_timestamp()),
	(1, 'empty', NULL, NULL), (2, 'empty', NULL, NULL);
CREATE TABLE idempotency_internal.outbox_history_0 (
	subscription bigint NOT NULL,
	position     bigint NOT NULL,
	attempt      integer NOT NULL,
	at           timestamptz NOT NULL,
	duration_ms  integer,
	status       integer,
	error        text,
	answer       text,
	topic        text,
	key          text COLLATE "C",
	type         text,
	created_at   timestamptz
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX outbox_history_0_position
	ON idempotency_internal.outbox_history_0 (subscription, position);
CREATE TABLE idempotency_internal.outbox_history_1 (
	LIKE idempotency_internal.outbox_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE idempotency_internal.outbox_history_2 (
	LIKE idempotency_internal.outbox_history_0 INCLUDING ALL
) WITH (autovacuum_vacuum_insert_threshold = -1);
ALTER TABLE idempotency_internal.outbox_history_0 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.outbox_history_1 REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.outbox_history_2 REPLICA IDENTITY FULL;
DROP FUNCTION outbox_enqueue(text, jsonb, text, text, jsonb, timestamptz);
DROP FUNCTION outbox_redrive(text, bigint[]);
DROP FUNCTION outbox_discard(text, bigint[]);
DROP FUNCTION outbox_subscribe(text, text, text[], text, jsonb, text, boolean,
	integer, interval, interval[], text, integer);
DROP FUNCTION outbox_alter(text, text, text[], jsonb, text, integer, interval,
	interval[]);
DROP FUNCTION idempotency_internal.outbox_check_subscription(text, text[], text,
	integer, interval, interval[], text, boolean, integer);

/* ---- stock ---- */

DROP FUNCTION stock_lines(jsonb);
DROP FUNCTION stock_receive(text, bigint, text);
DROP FUNCTION stock_adjust(text, bigint, text);
DROP FUNCTION stock_reserve(stock_line[], text, interval, text);
DROP FUNCTION stock_reserve(text, bigint, text, interval, text);
DROP FUNCTION stock_confirm(text, text[]);
DROP FUNCTION stock_cancel(text, text[]);
DROP FUNCTION stock_reinstate(text, interval);
DROP FUNCTION idempotency_internal.stock_counters();
ALTER TYPE stock_reservation ALTER ATTRIBUTE shortages TYPE jsonb;
DROP TYPE stock_line, stock_shortage;

/*
 * Nothing below may use the new labels, neither a constraint nor the definition
 * of a view or SQL function: that is possible only after this has committed.
 */
ALTER TYPE stock_change ADD VALUE 'transfer';
ALTER TYPE stock_change ADD VALUE 'backorder';
ALTER TYPE stock_outcome ADD VALUE 'waiting';
ALTER TYPE stock_settlement ADD VALUE 'waiting';

/*
 * From now on a reservation is its hold, and has no row in the log until it is
 * settled.  That is the same only if holds and log agree.
 */
DO $$
DECLARE
	wrong pg_catalog.text;
BEGIN
	SELECT b.sku INTO wrong FROM idempotency_internal.stock_books b
	WHERE b.reserved OPERATOR(pg_catalog.<>) b.held LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'reservations of item "%" differ in stock_log and stock_hold', wrong
			USING ERRCODE = '55000',
			HINT = 'stock_verify() lists all such items. Correct them with the previous version.';
	END IF;
END
$$;
DROP VIEW idempotency_internal.stock_books;
/* It gets its body below; this one does not name the column. */
CREATE OR REPLACE VIEW stock_levels AS
	SELECT sku, NULL::bigint AS available, NULL::bigint AS reserved,
		received, adjusted, confirmed
	FROM idempotency_internal.stock_item;
ALTER TABLE idempotency_internal.stock_item
	RENAME COLUMN reserved TO backorder;
ALTER TABLE idempotency_internal.stock_item
	ALTER COLUMN backorder TYPE numeric USING 0;

/*
 * No defaults: null means not known, and no table is rewritten.
 */
ALTER TABLE idempotency_internal.stock_log
	ADD COLUMN lines smallint,
	ADD COLUMN reserved_id bigint,
	ADD COLUMN reserved_at timestamptz,
	ADD COLUMN reserved_by text,
	DROP CONSTRAINT IF EXISTS stock_log_check,
	DROP CONSTRAINT IF EXISTS stock_log_check1,
	DROP CONSTRAINT IF EXISTS stock_log_check2,
	ADD CONSTRAINT stock_log_check CHECK (quantity > 0 OR (change NOT IN
		('receive', 'reserve', 'cancel', 'expire', 'confirm', 'reinstate')
		AND quantity < 0)),
	ADD CONSTRAINT stock_log_check1 CHECK ((reservation IS NOT NULL) =
		(change IN ('reserve', 'cancel', 'expire', 'confirm', 'reinstate'))),
	ADD CONSTRAINT stock_log_check2 CHECK ((line IS NOT NULL) =
		(change IN ('cancel', 'expire', 'confirm', 'reinstate'))),
	ADD CONSTRAINT stock_log_id_check CHECK (id > 0),
	ADD CONSTRAINT stock_log_line_check CHECK (line BETWEEN 0 AND 9999),
	ADD CONSTRAINT stock_log_lines_check CHECK (lines IS NULL
		OR (line IS NOT NULL AND line < lines AND lines <= 10000)),
	ADD CONSTRAINT stock_log_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_log_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_log_actor_check
		CHECK (pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_log_note_check
		CHECK (pg_catalog.octet_length(note) <= 1000),
	ADD CONSTRAINT stock_log_reserved_check CHECK (
		pg_catalog.num_nonnulls(reserved_id, reserved_at, reserved_by) IN (0, 3)
		AND reserved_id > 0 AND (reserved_id IS NULL OR line IS NOT NULL)
		AND pg_catalog.octet_length(reserved_by) BETWEEN 1 AND 255);
DROP INDEX idempotency_internal.stock_hold_expires_at;
ALTER TABLE idempotency_internal.stock_hold
	ADD COLUMN lines smallint,
	ADD COLUMN id bigint,
	ADD COLUMN at timestamptz,
	ADD COLUMN actor text,
	DROP CONSTRAINT stock_hold_quantity_check,
	ADD CONSTRAINT stock_hold_quantity_check CHECK (quantity >= 0),
	ADD CONSTRAINT stock_hold_expires_at_check
		CHECK (pg_catalog.isfinite(expires_at)),
	ADD CONSTRAINT stock_hold_lines_check
		CHECK (line < lines AND lines <= 10000),
	ADD CONSTRAINT stock_hold_line_max_check CHECK (line < 10000),
	ADD CONSTRAINT stock_hold_reservation_check
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_hold_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_hold_opened_check CHECK (
		pg_catalog.num_nonnulls(id, at, actor) IN (0, 3) AND id > 0
		AND pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_hold_waits_check
		CHECK (quantity > 0 OR id IS NOT NULL);
CREATE TABLE idempotency_internal.stock_queue (
	id          bigint CHECK (id > 0),
	quantity    bigint NOT NULL CHECK (quantity > 0),
	ttl_us      bigint NOT NULL CHECK (ttl_us BETWEEN 1 AND 31622400000000),
	sku         text COLLATE "C"
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	reservation text COLLATE "C" NOT NULL
		CHECK (pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
	PRIMARY KEY (sku, id)
);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.stock_queue', '');
CREATE TABLE idempotency_internal.stock_in_doubt (
	sku         text COLLATE "C" NOT NULL,
	taken       bigint NOT NULL,
	received    bigint NOT NULL,
	leaving     bigint NOT NULL,
	pending     bigint NOT NULL,
	joined      integer NOT NULL,
	served      integer NOT NULL,
	created     boolean NOT NULL,
	lapses_at   timestamptz NOT NULL
);
CREATE INDEX ON idempotency_internal.stock_in_doubt (sku);
ALTER TABLE idempotency_internal.stock_in_doubt REPLICA IDENTITY FULL;
ALTER TABLE idempotency_internal.stock_item
	ADD CONSTRAINT stock_item_sku_check
		CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
	ADD CONSTRAINT stock_item_sums_check CHECK (
		received < 'Infinity' AND received = pg_catalog.trunc(received)
		AND adjusted > '-Infinity' AND adjusted < 'Infinity'
		AND adjusted = pg_catalog.trunc(adjusted)
		AND confirmed < 'Infinity' AND confirmed = pg_catalog.trunc(confirmed)
		AND backorder > '-Infinity' AND backorder < 'Infinity'
		AND backorder = pg_catalog.trunc(backorder));
DO $$
BEGIN
	FOR slot IN 0..2 LOOP
		EXECUTE pg_catalog.format($alter$
			ALTER TABLE idempotency_internal.stock_history_%s
				ADD COLUMN lines smallint,
				ADD COLUMN reserved_id bigint,
				ADD COLUMN reserved_at timestamptz,
				ADD COLUMN reserved_by text,
				ADD CONSTRAINT stock_history_quantity_check CHECK (
					quantity > 0 OR (change NOT IN ('receive', 'reserve',
						'cancel', 'expire', 'confirm', 'reinstate')
					AND quantity < 0)),
				ADD CONSTRAINT stock_history_change_check CHECK (
					(reservation IS NOT NULL) = (change IN ('reserve',
						'cancel', 'expire', 'confirm', 'reinstate'))
					AND (line IS NOT NULL) = (change IN (
						'cancel', 'expire', 'confirm', 'reinstate'))),
				ADD CONSTRAINT stock_history_id_check CHECK (id > 0),
				ADD CONSTRAINT stock_history_line_check
					CHECK (line BETWEEN 0 AND 9999),
				ADD CONSTRAINT stock_history_lines_check CHECK (lines IS NULL
					OR (line IS NOT NULL AND line < lines AND lines <= 10000)),
				ADD CONSTRAINT stock_history_sku_check
					CHECK (pg_catalog.octet_length(sku) BETWEEN 1 AND 255),
				ADD CONSTRAINT stock_history_reservation_check CHECK (
					pg_catalog.octet_length(reservation) BETWEEN 1 AND 255),
				ADD CONSTRAINT stock_history_actor_check
					CHECK (pg_catalog.octet_length(actor) BETWEEN 1 AND 255),
				ADD CONSTRAINT stock_history_note_check
					CHECK (pg_catalog.octet_length(note) <= 1000),
				ADD CONSTRAINT stock_history_reserved_check CHECK (
					pg_catalog.num_nonnulls(
						reserved_id, reserved_at, reserved_by) IN (0, 3)
					AND reserved_id > 0
					AND (reserved_id IS NULL OR line IS NOT NULL)
					AND pg_catalog.octet_length(reserved_by) BETWEEN 1 AND 255)
			$alter$, slot);
		EXECUTE pg_catalog.format('ALTER TABLE idempotency_internal.stock_history_%s REPLICA IDENTITY FULL', slot);
	END LOOP;
END
$$;
CREATE INDEX stock_history_0_reinstated
	ON idempotency_internal.stock_history_0 (id) WHERE change = 'reinstate';
CREATE INDEX stock_history_1_id_idx
	ON idempotency_internal.stock_history_1 (id) WHERE change = 'reinstate';
CREATE INDEX stock_history_2_id_idx
	ON idempotency_internal.stock_history_2 (id) WHERE change = 'reinstate';

/* ---- privileges ---- */

DROP FUNCTION idempotency_internal.idempotency_grant_names(
	regrole, text[], text[]);

/*
 * New functions and views for pg_monitor.  Those in SQL get their bodies below,
 * and the views get their other columns.
 */
CREATE FUNCTION idempotency_internal.outbox_rate_limited()
RETURNS SETOF bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.outbox_troubles(
	OUT subscription bigint, OUT trouble text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.idem_evicted()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.outbox_shares(
	OUT subscription bigint, OUT share double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.idempotency_workers(
	OUT kind text, OUT number integer, OUT pid integer,
	OUT started_at timestamptz, OUT starts bigint,
	OUT last_success_at timestamptz, OUT errors bigint,
	OUT last_error_at timestamptz, OUT last_error text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.outbox_traffic(
	OUT subscription bigint, OUT answered_2xx bigint, OUT answered_4xx bigint,
	OUT answered_410 bigint, OUT answered_429 bigint, OUT answered_5xx bigint,
	OUT answered_other bigint, OUT timeouts bigint,
	OUT connection_errors bigint, OUT request_seconds double precision,
	OUT delivery_seconds double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.outbox_latencies(
	OUT subscription bigint, OUT measure text, OUT le double precision,
	OUT count bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.idempotency_counted_since()
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.stock_counts(
	OUT since timestamptz, OUT reserved bigint, OUT insufficient bigint,
	OUT queued bigint, OUT confirmed bigint, OUT cancelled bigint,
	OUT expired bigint)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
CREATE FUNCTION idempotency_internal.stock_numbers(
	OUT counters_used bigint, OUT counters_in_use bigint,
	OUT counters_max bigint, OUT crowded bigint, OUT overdue bigint,
	OUT waiting bigint, OUT waiting_items bigint, OUT late_items bigint)
RETURNS record
LANGUAGE plpgsql
AS 'BEGIN END';
CREATE FUNCTION idempotency_status(
	OUT "check" text, OUT state text, OUT detail text, OUT hint text,
	OUT state_code integer)
RETURNS SETOF record
LANGUAGE plpgsql
AS 'BEGIN END';
CREATE VIEW idem_keys AS SELECT ''::text COLLATE "C" AS scope;
CREATE VIEW idem_fences AS SELECT ''::text COLLATE "C" AS scope;
CREATE VIEW outbox_deliveries AS SELECT ''::text COLLATE "C" AS subscription;
CREATE VIEW outbox_topics AS SELECT ''::text COLLATE "C" AS topic;
CREATE VIEW stock_holds AS SELECT ''::text COLLATE "C" AS reservation;
CREATE VIEW stock_waiting AS SELECT ''::text COLLATE "C" AS sku;
CREATE VIEW idempotency_segments AS SELECT ''::text AS name;
CREATE VIEW idempotency_workers AS SELECT ''::text AS kind;
CREATE VIEW outbox_stats AS SELECT ''::text COLLATE "C" AS name;
CREATE VIEW outbox_latency AS SELECT ''::text COLLATE "C" AS name;
CREATE VIEW stock_stats AS SELECT pg_catalog.now() AS since;
DO $$
DECLARE
	owner pg_catalog.regrole;
	created text;
BEGIN
	SELECT extowner INTO STRICT owner FROM pg_catalog.pg_extension
	WHERE extname = 'idempotency';
	FOREACH created IN ARRAY ARRAY['idem_evicted', 'outbox_rate_limited',
		'outbox_troubles', 'outbox_shares', 'idempotency_workers',
		'outbox_traffic', 'outbox_latencies', 'idempotency_counted_since',
		'stock_counts', 'stock_numbers'] LOOP
		EXECUTE pg_catalog.format('ALTER FUNCTION idempotency_internal.%I() OWNER TO %s', created, owner);
	END LOOP;
	EXECUTE pg_catalog.format('ALTER FUNCTION idempotency_status() OWNER TO %s', owner);
	FOREACH created IN ARRAY ARRAY['idem_keys', 'idem_fences', 'outbox_deliveries',
		'outbox_topics', 'stock_holds', 'stock_waiting',
		'idempotency_segments', 'idempotency_workers', 'outbox_stats',
		'outbox_latency', 'stock_stats'] LOOP
		EXECUTE pg_catalog.format('ALTER VIEW %I OWNER TO %s', created, owner);
	END LOOP;
END
$$;
REVOKE ALL
ON FUNCTION idempotency_internal.idem_evicted(),
	idempotency_internal.outbox_rate_limited(),
	idempotency_internal.outbox_troubles(),
	idempotency_internal.outbox_shares(),
	idempotency_internal.idempotency_workers(),
	idempotency_internal.outbox_traffic(),
	idempotency_internal.outbox_latencies(),
	idempotency_internal.idempotency_counted_since(),
	idempotency_internal.stock_counts(),
	idempotency_internal.stock_numbers(), idempotency_status()
FROM PUBLIC;
GRANT EXECUTE
ON FUNCTION idempotency_internal.idem_evicted(),
	idempotency_internal.outbox_rate_limited(),
	idempotency_internal.outbox_troubles(),
	idempotency_internal.outbox_shares(),
	idempotency_internal.idempotency_workers(),
	idempotency_internal.outbox_traffic(),
	idempotency_internal.outbox_latencies(),
	idempotency_internal.idempotency_counted_since(),
	idempotency_internal.stock_counts(),
	idempotency_internal.stock_numbers(), idempotency_status()
TO pg_monitor;
GRANT SELECT ON idem_keys, idem_fences, outbox_deliveries, outbox_topics,
	stock_holds, stock_waiting, idempotency_segments, idempotency_workers,
	outbox_stats, outbox_latency, stock_stats
TO pg_monitor;
