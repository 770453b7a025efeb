-- Everything public: every object of the extension that is not in
-- idempotency_internal, one per line, with what callers rely on and which
-- roles may use it besides the owner.  If this fails, callers' code breaks, or
-- something has become public by mistake.  If the change was intended, take
-- over the lines of the failure: add those with +, remove those with -.
BEGIN;
SELECT plan(5);

CREATE ROLE application;
CREATE ROLE operator;
CREATE ROLE reader;
SELECT idempotency_grant('application');
SELECT idempotency_grant_operator('operator');
SELECT idempotency_grant_reader('reader');

-- As users see it: names in idempotency_internal are printed with their schema.
SET LOCAL search_path = public;

-- Without the array types, which come with their types; PostgreSQL 17 lists them.
CREATE TEMPORARY VIEW member AS
SELECT d.classid, d.objid, i.type AS kind, i.schema, i.identity
FROM pg_depend d
JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid,
LATERAL pg_identify_object(d.classid, d.objid, 0) i
WHERE e.extname = 'idempotency' AND d.deptype = 'e'
	AND NOT EXISTS (SELECT FROM pg_type t
		WHERE d.classid = 'pg_type'::regclass AND d.objid = t.typarray);

-- Other roles with privileges, and these, if they are not the usual ones.
CREATE FUNCTION pg_temp.others(privileges aclitem[], owner oid, usual text)
RETURNS text
LANGUAGE sql STABLE AS $$
	SELECT coalesce(string_agg(concat_ws(' ',
			CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
			nullif(privilege_type, usual), CASE WHEN is_grantable THEN 'WITH GRANT OPTION' END),
		', ' ORDER BY grantee = 0, grantee::regrole::text COLLATE "C",
			privilege_type), 'nobody')
	FROM aclexplode(privileges) WHERE grantee <> owner
$$;

CREATE TEMPORARY VIEW public_column AS
SELECT a.attrelid, a.attnum, a.attname,
	concat_ws(' ', format_type(a.atttypid, a.atttypmod),
	'COLLATE ' || nullif(a.attcollation, t.typcollation)::regcollation) AS type,
	nullif(pg_temp.others(a.attacl, c.relowner, ''), 'nobody') AS others
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attnum > 0 AND NOT a.attisdropped;

CREATE TEMPORARY VIEW public_object AS
SELECT kind, identity, 0 AS number, concat_ws(' ',
	format('%s %s(%s)', kind, p.proname, pg_get_function_arguments(p.oid)),
	'RETURNS ' || pg_get_function_result(p.oid),
	CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE'
		ELSE 'VOLATILE' END,
	CASE p.proparallel WHEN 's' THEN 'PARALLEL SAFE'
		WHEN 'r' THEN 'PARALLEL RESTRICTED' ELSE 'PARALLEL UNSAFE' END,
	'COST ' || p.procost, CASE WHEN p.proisstrict THEN 'STRICT' END,
	CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' END)
	|| ': '
	|| pg_temp.others(coalesce(p.proacl, acldefault('f', p.proowner)),
		p.proowner, 'EXECUTE') AS line
FROM member JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
WHERE kind IN ('function', 'procedure') AND schema <> 'idempotency_internal'
UNION ALL
SELECT kind, identity, 0, concat_ws(' ', 'type', t.typname,
	CASE t.typtype
		WHEN 'e' THEN (
			SELECT format('ENUM (%s)',
				string_agg(v.enumlabel, ', ' ORDER BY v.enumsortorder))
			FROM pg_enum v WHERE v.enumtypid = t.oid)
		WHEN 'c' THEN (
			SELECT format('(%s)',
				string_agg(a.attname || ' ' || a.type, ', ' ORDER BY a.attnum))
			FROM public_column a WHERE a.attrelid = t.typrelid)
		ELSE format('of kind "%s"', t.typtype) END)
	|| ': '
	|| pg_temp.others(coalesce(t.typacl, acldefault('T', t.typowner)),
		t.typowner, 'USAGE')
FROM member JOIN pg_type t ON classid = 'pg_type'::regclass AND t.oid = objid
WHERE schema <> 'idempotency_internal'
UNION ALL
SELECT kind, identity, 0,
	concat_ws(' ', kind, c.relname,
		'WITH (' || array_to_string(c.reloptions, ', ') || ')')
	|| ': ' || pg_temp.others(c.relacl, c.relowner, 'SELECT')
FROM member JOIN pg_class c ON classid = 'pg_class'::regclass AND c.oid = objid
WHERE schema <> 'idempotency_internal'
UNION ALL
SELECT kind, identity, a.attnum,
	format('column %s.%s %s', c.relname, a.attname, concat_ws(': ', a.type, a.others))
FROM member JOIN pg_class c ON classid = 'pg_class'::regclass AND c.oid = objid
JOIN public_column a ON a.attrelid = c.oid
WHERE schema <> 'idempotency_internal'
UNION ALL
SELECT kind, identity, 0,
	'schema ' || n.nspname || ': ' || pg_temp.others(n.nspacl, n.nspowner, 'USAGE')
FROM member JOIN pg_namespace n ON classid = 'pg_namespace'::regclass AND n.oid = objid
UNION ALL
SELECT kind, identity, 0, kind || ' ' || identity
FROM member
WHERE kind NOT IN ('function', 'procedure')
	AND classid NOT IN ('pg_type'::regclass, 'pg_class'::regclass, 'pg_namespace'::regclass)
	AND schema IS DISTINCT FROM 'idempotency_internal';

CREATE TEMPORARY TABLE have AS
SELECT line COLLATE "C" AS line,
	row_number() OVER (
		ORDER BY kind COLLATE "C", identity COLLATE "C", number) AS number
FROM public_object;
CREATE TEMPORARY TABLE want AS
SELECT line COLLATE "C" AS line, number FROM string_to_table(
$list$function idem_claim(key text, scope text DEFAULT ''::text, lease interval DEFAULT NULL::interval, request text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, wait boolean DEFAULT true) RETURNS idem_answer VOLATILE PARALLEL UNSAFE COST 10000: application
function idem_claim_many(keys text[], scope text DEFAULT ''::text, lease interval DEFAULT NULL::interval, ttl interval DEFAULT NULL::interval, wait boolean DEFAULT true, OUT key text, OUT outcome idem_outcome, OUT token bigint, OUT attempt integer, OUT response jsonb, OUT retry_after interval) RETURNS SETOF record VOLATILE PARALLEL UNSAFE COST 10000: application
function idem_complete(key text, token bigint, response jsonb DEFAULT NULL::jsonb, scope text DEFAULT ''::text, ttl interval DEFAULT NULL::interval) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: application
function idem_erase(key text, scope text DEFAULT ''::text) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000: nobody
function idem_export(VARIADIC scopes text[]) RETURNS SETOF jsonb VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: nobody
function idem_fail(key text, token bigint, error jsonb DEFAULT NULL::jsonb, scope text DEFAULT ''::text, retry boolean DEFAULT true) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: application
function idem_fence(scope text) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function idem_forget(key text, scope text DEFAULT ''::text) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000: operator
function idem_import(exported jsonb) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: nobody
function idem_renew(key text, token bigint, lease interval DEFAULT NULL::interval, scope text DEFAULT ''::text) RETURNS timestamp with time zone VOLATILE PARALLEL UNSAFE COST 10000: application
function idem_unfence(scope text) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function idempotency_grant(role regrole) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: nobody
function idempotency_grant_admin(role regrole) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: nobody
function idempotency_grant_operator(role regrole) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: nobody
function idempotency_grant_reader(role regrole) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: nobody
function idempotency_repair() RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: nobody
function idempotency_stats_reset() RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function idempotency_status(OUT "check" text, OUT state text, OUT detail text, OUT hint text, OUT state_code integer) RETURNS SETOF record VOLATILE PARALLEL UNSAFE COST 100 SECURITY DEFINER: operator, pg_monitor
function outbox_ack(name text, token bigint, failed bigint[] DEFAULT '{}'::bigint[], error text DEFAULT NULL::text) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: reader
function outbox_acknowledge_lost(name text) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_adopt(keep_identity boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_alter(name text, url text DEFAULT NULL::text, topics text[] DEFAULT NULL::text[], headers jsonb DEFAULT NULL::jsonb, format text DEFAULT NULL::text, max_in_flight integer DEFAULT NULL::integer, timeout interval DEFAULT NULL::interval, retry_schedule interval[] DEFAULT NULL::interval[], rate_limit numeric DEFAULT NULL::numeric, batch integer DEFAULT NULL::integer, filter jsonpath DEFAULT NULL::jsonpath, authorization_file text DEFAULT NULL::text, client_certificate text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, keep_deliveries interval DEFAULT NULL::interval) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_cancel("position" bigint) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: application
function outbox_dead_page(name text, after bigint DEFAULT 0, max_events integer DEFAULT 100) RETURNS SETOF outbox_dead STABLE PARALLEL UNSAFE COST 100 SECURITY DEFINER: operator
function outbox_discard(name text, positions bigint[] DEFAULT NULL::bigint[]) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_drop_topic(name text) RETURNS boolean VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_enqueue(topic text, payload jsonb, key text DEFAULT NULL::text, type text DEFAULT NULL::text, headers jsonb DEFAULT NULL::jsonb, deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone, expires_at timestamp with time zone DEFAULT NULL::timestamp with time zone, dedup_key text DEFAULT NULL::text, dedup_ttl interval DEFAULT NULL::interval, replace boolean DEFAULT false) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000: application
function outbox_erase(key text, topics text[] DEFAULT '{*}'::text[], max_events integer DEFAULT 10000) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: nobody
function outbox_erase(keys text[], topics text[] DEFAULT '{*}'::text[], max_events integer DEFAULT 10000) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: nobody
function outbox_event_id("position" bigint) RETURNS text VOLATILE PARALLEL UNSAFE COST 100 SECURITY DEFINER: application
function outbox_fetch(name text, max_events integer DEFAULT 100, lease interval DEFAULT '00:00:30'::interval, OUT token bigint, OUT "position" bigint, OUT id text, OUT topic text, OUT key text, OUT type text, OUT payload jsonb, OUT headers jsonb, OUT created_at timestamp with time zone, OUT attempt integer) RETURNS SETOF record VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: reader
function outbox_key_generate() RETURNS text VOLATILE PARALLEL SAFE COST 1: operator
function outbox_pause(name text, reason text DEFAULT NULL::text) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_ping(name text) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_public_key(name text) RETURNS text STABLE PARALLEL UNSAFE COST 100 SECURITY DEFINER: operator
function outbox_redrive(name text, positions bigint[] DEFAULT NULL::bigint[]) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_replay(name text, from_position bigint DEFAULT NULL::bigint, since timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_resume(name text) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_retry(name text, positions bigint[] DEFAULT NULL::bigint[]) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_rotate_key(name text, overlap interval DEFAULT '24:00:00'::interval, signing_key text DEFAULT NULL::text) RETURNS text VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_rotate_secret(name text, overlap interval DEFAULT '24:00:00'::interval, secret text DEFAULT NULL::text) RETURNS text VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_secret_generate() RETURNS text VOLATILE PARALLEL SAFE COST 1: operator
function outbox_signature(secret text, id text, "timestamp" bigint, body text) RETURNS text IMMUTABLE PARALLEL SAFE COST 1 STRICT: operator
function outbox_subscribe(name text, url text, topics text[] DEFAULT '{*}'::text[], secret text DEFAULT NULL::text, headers jsonb DEFAULT NULL::jsonb, format text DEFAULT 'standard'::text, ordered boolean DEFAULT true, max_in_flight integer DEFAULT 32, timeout interval DEFAULT '00:00:15'::interval, retry_schedule interval[] DEFAULT '{00:00:00,00:00:05,00:05:00,00:30:00,02:00:00,05:00:00,10:00:00,14:00:00,20:00:00,24:00:00}'::interval[], start text DEFAULT 'latest'::text, partitions integer DEFAULT 1, rate_limit numeric DEFAULT NULL::numeric, batch integer DEFAULT 1, filter jsonpath DEFAULT NULL::jsonpath, signing_key text DEFAULT NULL::text, authorization_file text DEFAULT NULL::text, client_certificate text DEFAULT NULL::text, priority integer DEFAULT 1, keep_deliveries interval DEFAULT NULL::interval) RETURNS text VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_topic(name text, schema jsonb DEFAULT NULL::jsonb, description text DEFAULT NULL::text) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function outbox_topic_matches(patterns text[], topic text) RETURNS boolean IMMUTABLE PARALLEL SAFE COST 20 STRICT: operator
function outbox_unsubscribe(name text) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000 SECURITY DEFINER: operator
function stock_adjust(sku text, delta bigint, note text, actor text DEFAULT NULL::text, OUT available bigint) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000: operator
function stock_backorder(sku text, quantity bigint, note text DEFAULT NULL::text, actor text DEFAULT NULL::text, OUT available bigint) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000: operator
function stock_cancel(reservation text, skus text[] DEFAULT NULL::text[], actor text DEFAULT NULL::text, OUT outcome stock_settlement) RETURNS stock_settlement VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_change_many(reservation text, lines jsonb, ttl interval DEFAULT NULL::interval, actor text DEFAULT NULL::text, OUT outcome stock_settlement, OUT expires_at timestamp with time zone, OUT shortages jsonb) RETURNS record VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_confirm(reservation text, skus text[] DEFAULT NULL::text[], actor text DEFAULT NULL::text, OUT outcome stock_settlement) RETURNS stock_settlement VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_extend(reservation text, ttl interval DEFAULT NULL::interval, OUT outcome stock_settlement, OUT expires_at timestamp with time zone) RETURNS record VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_level(sku text) RETURNS TABLE(available bigint, reserved bigint) VOLATILE PARALLEL UNSAFE COST 100 SECURITY DEFINER: application, operator
function stock_position(reservation text, at_most bigint DEFAULT 10000) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 100 SECURITY DEFINER: application, operator
function stock_receive(sku text, quantity bigint, note text DEFAULT NULL::text, actor text DEFAULT NULL::text, OUT available bigint) RETURNS bigint VOLATILE PARALLEL UNSAFE COST 10000: operator
function stock_reinstate(reservation text, ttl interval DEFAULT NULL::interval, actor text DEFAULT NULL::text, OUT outcome stock_settlement, OUT expires_at timestamp with time zone, OUT shortages jsonb) RETURNS record VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_reservation_status(reservation text, OUT state text, OUT expires_at timestamp with time zone, OUT lines jsonb) RETURNS SETOF record VOLATILE PARALLEL UNSAFE COST 100 SECURITY DEFINER: application
function stock_reserve(sku text, quantity bigint, reservation text, ttl interval DEFAULT NULL::interval, actor text DEFAULT NULL::text, anew boolean DEFAULT false, wait boolean DEFAULT false, wait_ttl interval DEFAULT NULL::interval) RETURNS stock_reservation VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_reserve_many(lines jsonb, reservation text, ttl interval DEFAULT NULL::interval, actor text DEFAULT NULL::text, anew boolean DEFAULT false, partial boolean DEFAULT false) RETURNS stock_reservation VOLATILE PARALLEL UNSAFE COST 10000: application
function stock_transfer(from_sku text, to_sku text, quantity bigint, note text DEFAULT NULL::text, actor text DEFAULT NULL::text) RETURNS void VOLATILE PARALLEL UNSAFE COST 10000: operator
function stock_verify(INOUT sku text DEFAULT NULL::text, OUT available bigint, OUT reserved bigint, OUT ok boolean, OUT detail text) RETURNS SETOF record VOLATILE PARALLEL UNSAFE COST 100 SECURITY DEFINER: operator
procedure idem_wait(IN key text, IN scope text DEFAULT ''::text, IN timeout interval DEFAULT '00:00:20'::interval, INOUT outcome idem_outcome DEFAULT NULL::idem_outcome, INOUT attempt integer DEFAULT NULL::integer, INOUT response jsonb DEFAULT NULL::jsonb, INOUT retry_after interval DEFAULT NULL::interval) VOLATILE PARALLEL UNSAFE COST 1: application
procedure outbox_wait(IN name text, IN timeout interval DEFAULT '00:00:20'::interval) VOLATILE PARALLEL UNSAFE COST 1 SECURITY DEFINER: reader
schema idempotency_internal: application
type idem_answer (outcome idem_outcome, token bigint, attempt integer, response jsonb, retry_after interval): PUBLIC
type idem_outcome ENUM (claimed, in_progress, completed, failed, mismatch): PUBLIC
type stock_change ENUM (receive, adjust, reserve, cancel, expire, confirm, reinstate, transfer, backorder): PUBLIC
type stock_outcome ENUM (reserved, insufficient, unknown_sku, waiting): PUBLIC
type stock_reservation (outcome stock_outcome, expires_at timestamp with time zone, shortages jsonb): PUBLIC
type stock_settlement ENUM (done, expired, already_confirmed, already_cancelled, already_reserved, insufficient, unknown, waiting): PUBLIC
view idem_fences: operator, pg_monitor
column idem_fences.scope text COLLATE "C"
column idem_fences.fenced_at timestamp with time zone
view idem_key: nobody
column idem_key.token bigint
column idem_key.expires_at timestamp with time zone
column idem_key.attempt integer
column idem_key.state "char"
column idem_key.scope text COLLATE "C"
column idem_key.key text COLLATE "C"
column idem_key.lease_until timestamp with time zone
column idem_key.request bytea
column idem_key.response jsonb
view idem_keys WITH (security_barrier=true): operator, pg_monitor
column idem_keys.scope text COLLATE "C"
column idem_keys.key text COLLATE "C"
column idem_keys.state text
column idem_keys.attempt integer
column idem_keys.lease_until timestamp with time zone
column idem_keys.expires_at timestamp with time zone
view idem_stats WITH (security_barrier=true): operator, pg_monitor
column idem_stats.since timestamp with time zone
column idem_stats.claimed bigint
column idem_stats.replayed bigint
column idem_stats.in_progress bigint
column idem_stats.mismatches bigint
column idem_stats.takeovers bigint
column idem_stats.expired bigint
column idem_stats.keys_in_progress double precision
column idem_stats.keys_completed double precision
column idem_stats.keys_failed double precision
column idem_stats.keys_retryable double precision
column idem_stats.oldest_lease timestamp with time zone
column idem_stats.evicted bigint
view idempotency_audit: operator, pg_monitor
column idempotency_audit.at timestamp with time zone
column idempotency_audit.role text
column idempotency_audit.session_role text
column idempotency_audit.action text
column idempotency_audit.object text COLLATE "C"
column idempotency_audit.details jsonb
view idempotency_segments: operator, pg_monitor
column idempotency_segments.name text
column idempotency_segments.state text
column idempotency_segments.opened_at timestamp with time zone
column idempotency_segments.closed_at timestamp with time zone
column idempotency_segments.quiet_xid xid8
column idempotency_segments.last_position bigint
column idempotency_segments.size bigint
column idempotency_segments.state_code integer
view idempotency_workers: operator, pg_monitor
column idempotency_workers.kind text
column idempotency_workers.number integer
column idempotency_workers.pid integer
column idempotency_workers.started_at timestamp with time zone
column idempotency_workers.starts bigint
column idempotency_workers.last_success_at timestamp with time zone
column idempotency_workers.errors bigint
column idempotency_workers.last_error_at timestamp with time zone
column idempotency_workers.last_error text
view outbox_attempts WITH (security_barrier=true): nobody
column outbox_attempts.subscription text COLLATE "C"
column outbox_attempts.position bigint
column outbox_attempts.attempt integer
column outbox_attempts.at timestamp with time zone
column outbox_attempts.duration interval
column outbox_attempts.status integer
column outbox_attempts.error text
column outbox_attempts.answer text
view outbox_dead WITH (security_barrier=true): operator, pg_monitor
column outbox_dead.subscription text COLLATE "C"
column outbox_dead.position bigint
column outbox_dead.topic text
column outbox_dead.key text COLLATE "C"
column outbox_dead.type text
column outbox_dead.attempts integer
column outbox_dead.last_at timestamp with time zone
column outbox_dead.last_status integer
column outbox_dead.last_error text
column outbox_dead.created_at timestamp with time zone
view outbox_deliveries WITH (security_barrier=true): operator, pg_monitor
column outbox_deliveries.subscription text COLLATE "C"
column outbox_deliveries.position bigint
column outbox_deliveries.state text
column outbox_deliveries.topic text
column outbox_deliveries.key text COLLATE "C"
column outbox_deliveries.type text
column outbox_deliveries.attempts integer
column outbox_deliveries.next_attempt_at timestamp with time zone
column outbox_deliveries.last_at timestamp with time zone
column outbox_deliveries.last_status integer
column outbox_deliveries.last_error text
column outbox_deliveries.created_at timestamp with time zone
column outbox_deliveries.duration interval
view outbox_history WITH (security_barrier=true): nobody
column outbox_history.subscription text COLLATE "C"
column outbox_history.position bigint
column outbox_history.attempt integer
column outbox_history.at timestamp with time zone
column outbox_history.duration interval
column outbox_history.status integer
column outbox_history.error text
column outbox_history.answer text
column outbox_history.topic text
column outbox_history.key text COLLATE "C"
column outbox_history.type text
column outbox_history.created_at timestamp with time zone
view outbox_latency WITH (security_barrier=true): operator, pg_monitor
column outbox_latency.name text COLLATE "C"
column outbox_latency.measure text
column outbox_latency.le double precision
column outbox_latency.count bigint
view outbox_log: nobody
column outbox_log.position bigint
column outbox_log.xid xid8
column outbox_log.created_at timestamp with time zone
column outbox_log.deliver_at timestamp with time zone
column outbox_log.topic text
column outbox_log.key text
column outbox_log.type text
column outbox_log.payload jsonb
column outbox_log.headers jsonb
column outbox_log.expires_at timestamp with time zone
view outbox_stats WITH (security_barrier=true): operator, pg_monitor
column outbox_stats.name text COLLATE "C"
column outbox_stats.since timestamp with time zone
column outbox_stats.answered_2xx bigint
column outbox_stats.answered_4xx bigint
column outbox_stats.answered_410 bigint
column outbox_stats.answered_429 bigint
column outbox_stats.answered_5xx bigint
column outbox_stats.answered_other bigint
column outbox_stats.timeouts bigint
column outbox_stats.connection_errors bigint
column outbox_stats.request_seconds double precision
column outbox_stats.delivery_seconds double precision
view outbox_subscriptions WITH (security_barrier=true): operator, pg_monitor
column outbox_subscriptions.name text COLLATE "C"
column outbox_subscriptions.state text
column outbox_subscriptions.reason text
column outbox_subscriptions.partitions integer
column outbox_subscriptions.position bigint
column outbox_subscriptions.lag_events bigint
column outbox_subscriptions.lag interval
column outbox_subscriptions.in_flight integer
column outbox_subscriptions.waiting bigint
column outbox_subscriptions.parked bigint
column outbox_subscriptions.dead bigint
column outbox_subscriptions.lost bigint
column outbox_subscriptions.delivered bigint
column outbox_subscriptions.rate numeric
column outbox_subscriptions.failing_since timestamp with time zone
column outbox_subscriptions.last_failed_at timestamp with time zone
column outbox_subscriptions.last_status integer
column outbox_subscriptions.last_error text
column outbox_subscriptions.next_attempt_at timestamp with time zone
column outbox_subscriptions.rate_limited boolean
column outbox_subscriptions.filtered bigint
column outbox_subscriptions.filter_errors bigint
column outbox_subscriptions.share numeric
column outbox_subscriptions.state_code integer
column outbox_subscriptions.changed_at timestamp with time zone
column outbox_subscriptions.changed_by text
view outbox_topics: application, operator, pg_monitor, reader
column outbox_topics.topic text COLLATE "C"
column outbox_topics.schema jsonb
column outbox_topics.description text
column outbox_topics.created_at timestamp with time zone
column outbox_topics.changed_at timestamp with time zone
view stock_history: operator
column stock_history.id bigint
column stock_history.quantity bigint
column stock_history.at timestamp with time zone
column stock_history.change stock_change
column stock_history.line smallint
column stock_history.sku text COLLATE "C"
column stock_history.reservation text COLLATE "C"
column stock_history.actor text
column stock_history.note text
column stock_history.lines smallint
view stock_holds: operator, pg_monitor
column stock_holds.reservation text COLLATE "C"
column stock_holds.line smallint
column stock_holds.sku text COLLATE "C"
column stock_holds.quantity bigint
column stock_holds.expires_at timestamp with time zone
view stock_levels: application, operator, pg_monitor
column stock_levels.sku text COLLATE "C"
column stock_levels.available bigint
column stock_levels.reserved bigint
column stock_levels.received numeric
column stock_levels.adjusted numeric
column stock_levels.confirmed numeric
column stock_levels.waiting bigint
column stock_levels.backorder numeric
view stock_stats WITH (security_barrier=true): operator, pg_monitor
column stock_stats.since timestamp with time zone
column stock_stats.reserved bigint
column stock_stats.insufficient bigint
column stock_stats.queued bigint
column stock_stats.confirmed bigint
column stock_stats.cancelled bigint
column stock_stats.expired bigint
column stock_stats.waiting bigint
column stock_stats.overdue bigint
column stock_stats.counters_used bigint
column stock_stats.counters_in_use bigint
column stock_stats.counters_max bigint
view stock_waiting: operator, pg_monitor
column stock_waiting.sku text COLLATE "C"
column stock_waiting.position bigint
column stock_waiting.reservation text COLLATE "C"
column stock_waiting.quantity bigint
column stock_waiting.since timestamp with time zone
column stock_waiting.expires_at timestamp with time zone$list$, E'\n') WITH ORDINALITY l (line, number);

SELECT is((
	SELECT string_agg(sign || ' ' || line, E'\n' ORDER BY line, sign)
	FROM (
		(SELECT '+' AS sign, line FROM have
			EXCEPT ALL SELECT '+', line FROM want)
		UNION ALL
		(SELECT '-', line FROM want EXCEPT ALL SELECT '-', line FROM have)) d),
	NULL, 'what is public is what the list says');
SELECT results_eq('SELECT line FROM have WHERE line IN (SELECT line FROM want) ORDER BY number',
	'SELECT line FROM want WHERE line IN (SELECT line FROM have) ORDER BY number',
	'and columns are in its order, as everything else');

SELECT is_empty($$
	SELECT kind, identity FROM member
	WHERE schema IS DISTINCT FROM 'idempotency_internal'
		AND schema IS DISTINCT FROM (SELECT extnamespace::regnamespace::text
			FROM pg_extension WHERE extname = 'idempotency')
		AND (kind, identity) <> ('schema', 'idempotency_internal')
$$, 'no object of the extension is in a third schema, or in none');
SELECT is_empty($$
	SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d
	WHERE (d.refclassid, d.refobjid) =
			('pg_namespace'::regclass, 'idempotency_internal'::regnamespace)
		AND NOT EXISTS (SELECT FROM member m
			WHERE (m.classid, m.objid) = (d.classid, d.objid))
$$, 'idempotency_internal has nothing but objects of the extension');
SELECT is_empty($$
	SELECT identity FROM member
	WHERE classid = 'pg_proc'::regclass
		AND starts_with(obj_description(objid, classid::regclass::name),
			'Internal: ') <> (schema = 'idempotency_internal')
$$, 'the comment on a function says whether it is internal');

SELECT * FROM finish();
ROLLBACK;
