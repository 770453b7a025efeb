/* outbox: the log, who reads it, and how far.  Written by src/outbox/ alone. */

CREATE SEQUENCE outbox_position_seq AS bigint NO CYCLE CACHE 1;
COMMENT ON SEQUENCE outbox_position_seq IS
	'Positions in outbox_log.  CACHE must stay 1: the relay relies on it.';

CREATE FUNCTION outbox_next_position()
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_next_position() IS
	'Internal: registers this transaction with the relay and hands out a position.';

CREATE FUNCTION outbox_check_event(
	topic text, payload jsonb, key text, type text, headers jsonb,
	deliver_at timestamptz)
RETURNS boolean
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION outbox_check_event(text, jsonb, text, text, jsonb, timestamptz) IS
	'Internal: raises an error unless the event can be delivered.';

/*
 * Rows are only appended.  xid is the top-level transaction of the row: the
 * relay comes back for the rows of transactions that it had to pass.
 */
CREATE TABLE outbox_log (
	position   bigint PRIMARY KEY DEFAULT outbox_next_position(),
	xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
	created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	deliver_at timestamptz,
	topic      text NOT NULL,
	key        text,
	type       text,
	payload    jsonb NOT NULL,
	headers    jsonb,
	CHECK (outbox_check_event(topic, payload, key, type, headers, deliver_at))
);
COMMENT ON TABLE outbox_log IS
	'Events, in the order of their positions; only appended to.';

CREATE TABLE outbox_subscription (
	id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name           text COLLATE "C" NOT NULL UNIQUE,
	url            text NOT NULL,
	topics         text[] NOT NULL,
	secret         text NOT NULL,
	headers        jsonb,
	format         text NOT NULL CHECK (format IN ('standard', 'cloudevents')),
	ordered        boolean NOT NULL,
	max_in_flight  integer NOT NULL CHECK (max_in_flight BETWEEN 1 AND 256),
	timeout        interval NOT NULL,
	retry_schedule interval[] NOT NULL,
	state          text NOT NULL DEFAULT 'active'
		CHECK (state IN ('active', 'paused', 'disabled')),
	reason         text,
	created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox_subscription IS
	'Who gets which events, where and how.  Holds secrets: for the owner only.';

/*
 * How far a subscription has read.  Every row up to position was delivered or
 * is in outbox_delivery, or belongs to one of the stragglers: transactions
 * that were still open when the relay passed them.  Of a straggler, rows from
 * straggler_froms on are yet to be read.
 */
CREATE TABLE outbox_lane (
	subscription    bigint PRIMARY KEY
		REFERENCES outbox_subscription ON DELETE CASCADE,
	position        bigint NOT NULL,
	stragglers      xid8[] NOT NULL DEFAULT '{}',
	straggler_froms bigint[] NOT NULL DEFAULT '{}',
	CHECK (pg_catalog.cardinality(stragglers) OPERATOR(pg_catalog.=)
		pg_catalog.cardinality(straggler_froms))
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox_lane IS
	'The position of each subscription in the log.';

/*
 * The exceptions: events that a subscription could not be given at once, each
 * a copy.  waiting for its time (a retry, or deliver_at), parked behind a
 * waiting one of the same key, or dead.  Of those with blocks_key one for each
 * key is waiting and the others are parked, and all later events of the key
 * park behind them.
 */
CREATE TABLE outbox_delivery (
	subscription bigint NOT NULL
		REFERENCES outbox_subscription ON DELETE CASCADE,
	position     bigint NOT NULL,
	state        text NOT NULL CHECK (state IN ('waiting', 'parked', 'dead')),
	blocks_key   boolean NOT NULL,
	attempts     integer NOT NULL,
	due_at       timestamptz,
	last_at      timestamptz,
	last_status  integer,
	last_error   text,
	created_at   timestamptz NOT NULL,
	topic        text NOT NULL,
	key          text COLLATE "C",
	type         text,
	payload      jsonb NOT NULL,
	headers      jsonb,
	PRIMARY KEY (subscription, position),
	CHECK ((state = 'waiting') = (due_at IS NOT NULL))
);
CREATE INDEX outbox_delivery_due_at_idx
	ON outbox_delivery (subscription, due_at) WHERE state = 'waiting';
CREATE INDEX outbox_delivery_key_idx
	ON outbox_delivery (subscription, key, position) WHERE blocks_key;
COMMENT ON TABLE outbox_delivery IS
	'Events that wait for a retry or their time, are parked behind one of the same key, or are dead.';

/*
 * Where this outbox is at home.  A dump carries its row along, so a restored
 * copy has a row of another home beside its own, and sends nothing until it is
 * adopted.
 */
CREATE TABLE outbox_home (
	identity          uuid PRIMARY KEY,
	system_identifier bigint NOT NULL,
	database          oid NOT NULL,
	created_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox_home IS
	'The cluster and database that may send, and the random identity in webhook ids.';
INSERT INTO outbox_home (identity, system_identifier, database)
	SELECT gen_random_uuid(), s.system_identifier, d.oid
	FROM pg_control_system() s, pg_database d
	WHERE d.datname = current_database();

SELECT pg_catalog.pg_extension_config_dump('outbox_position_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_log', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_subscription', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_subscription_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_lane', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox_home', '');
