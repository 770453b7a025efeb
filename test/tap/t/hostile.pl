# No role gains privileges by objects that it creates around our tables and
# functions, although our workers run as a superuser.  If this fails, a role
# that may create objects in a schema, or a trigger on a table, becomes
# superuser.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = new_server('hostile', conf => <<'EOF');
idempotency.sweep_interval = 50ms
idempotency.outbox_retention = 0
idempotency.outbox_dead_retention = 0
idempotency.stock_history = 0
idempotency.stock_compact_after = 1
idempotency.stock_events = on
idempotency.stock_archive_topic = 'archive'
EOF
$node->start;

# The code that mallory wants others to run: it records the role, and tries to
# gain privileges.
my $strike = <<'EOF';
	SET client_min_messages = warning;
	CREATE SCHEMA mallory AUTHORIZATION mallory;
	SET SESSION AUTHORIZATION mallory;
	CREATE FUNCTION mallory.strike() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		RAISE LOG 'hostile code runs as %', current_user;
		ALTER ROLE mallory SUPERUSER;
	EXCEPTION WHEN insufficient_privilege THEN NULL;
	END $$;
	CREATE FUNCTION mallory.strike_trigger() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM mallory.strike(); RETURN NEW; END';
	GRANT USAGE ON SCHEMA mallory TO PUBLIC;
EOF

# Runs a command as a role; returns the SQLSTATE, empty if it succeeds.
sub code_as
{
	my ($role, $sql, $db) = @_;
	return error_code($node, $db // 'postgres', "SET SESSION AUTHORIZATION $role; $sql");
}

# The roles that hostile code has run as, except its author.
sub victims
{
	my %victims = map { $_ => 1 } slurp_file($node->logfile) =~ /hostile code runs as (\w+)/g;
	delete $victims{mallory};
	return join(' ', sort keys %victims);
}

# Has every step of the workers been taken?  Calls name the types of arguments,
# so that the test itself calls nothing of mallory's.
my $exercises = 0;
sub exercise
{
	my ($db, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $key = 'key-' . ++$exercises;
	my @before = split(/\|/, sql('SELECT (SELECT max(segment) FROM idem_ring),'
			  . ' (SELECT max(segment) FROM outbox_ring), (SELECT max(segment) FROM stock_ring)', $db));
	my $enqueue = 'outbox_enqueue(%s::text, \'{"n": %d}\'::jsonb, %s::text, NULL::text, NULL::jsonb, NULL::timestamptz,'
	  . ' NULL::timestamptz, NULL::text, NULL::interval, false)';

	sql(qq(
		SELECT idem_claim('$key'::text, ''::text, NULL::interval, NULL::text, '1 us'::interval, true);
		SELECT stock_receive('hat'::text, 10::bigint, NULL::text, NULL::text);
		SELECT stock_reserve('hat'::text, 10::bigint, '$key'::text, '1 us'::interval, 'me'::text, false, false, NULL::interval)), $db);
	my $position = sql('SELECT ' . sprintf($enqueue, "'fail'", 1, 'NULL') . ' UNION ALL SELECT ' . sprintf($enqueue, "'$name'", 1, "'k'")
		  . ' ORDER BY 1 DESC LIMIT 1', $db);
	$receiver->wait_for($name, events => 1);
	return $node->poll_query_until($db, "SELECT string_agg(undone, ', ') FROM (VALUES
		('keys', EXISTS (SELECT FROM idem_key_0 UNION ALL SELECT FROM idem_key_1 UNION ALL SELECT FROM idem_key_2)),
		('ring of keys', (SELECT max(segment) FROM idem_ring) = $before[0]),
		('ring of the log', (SELECT max(segment) FROM outbox_ring) = $before[1]),
		('ring of the history', (SELECT max(segment) FROM stock_ring) = $before[2]),
		('holds', EXISTS (SELECT FROM stock_hold)),
		('positions', (SELECT bool_or(position < $position) FROM outbox_reached)),
		('deferred deliveries', EXISTS (SELECT FROM outbox_delivery)),
		('cancellations', EXISTS (SELECT FROM outbox_cancelled))) v (undone, is_undone) WHERE is_undone", '');
}

sub subscribe_all
{
	my ($db, $name) = @_;
	subscribe($node, $receiver, "/ok/$name", db => $db, topics => "'{$name,stock.*,archive}'");
	subscribe($node, $receiver, "/fail/dead$name", db => $db, topics => "'{fail}'", retry_schedule => "'{0 s}'");
	return;
}

# --- a role that may create objects in the extension's schema before CREATE
# EXTENSION

sql('CREATE ROLE mallory LOGIN; CREATE DATABASE tried');
my $may_create = 'GRANT CREATE ON SCHEMA public TO mallory; GRANT CREATE ON DATABASE tried TO mallory;';
my %early = (
	'an operator that fits better' => q(
		CREATE FUNCTION mallory.ge(numeric, integer) RETURNS boolean LANGUAGE sql AS 'SELECT mallory.strike(); SELECT true';
		CREATE OPERATOR public.>= (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = mallory.ge)),
	'an operator for anything and a literal' => q(
		CREATE FUNCTION mallory.eq(anyelement, text) RETURNS boolean LANGUAGE sql AS 'SELECT mallory.strike(); SELECT true';
		CREATE OPERATOR public.= (LEFTARG = anyelement, RIGHTARG = text, FUNCTION = mallory.eq)),
	'a schema that has the name of ours' => q(
		CREATE SCHEMA idempotency_internal;
		CREATE FUNCTION idempotency_internal.outbox_rate(double precision, timestamptz) RETURNS double precision
			LANGUAGE sql AS 'SELECT mallory.strike(); SELECT 1.0::double precision'),
);
for my $what (sort keys %early)
{
	sql("$may_create $strike $early{$what}", 'tried');
	isnt(error_code($node, 'tried', 'CREATE EXTENSION idempotency'), '', "$what keeps the extension away");
	sql('SET client_min_messages = warning; DROP OWNED BY mallory', 'tried');
}

# --- and after it: mallory overloads each of our functions in several ways

# One of them exists before: a function that fits better where ours has a
# default.
sql("$may_create $strike" . q(
	CREATE FUNCTION public.outbox_rate(double precision, timestamptz) RETURNS double precision
		LANGUAGE sql AS 'SELECT mallory.strike(); SELECT 1.0::double precision';
	RESET SESSION AUTHORIZATION;
	CREATE EXTENSION idempotency;
	GRANT USAGE ON SCHEMA idempotency_internal TO mallory), 'tried');
wait_for_workers($node, 'tried');
subscribe_all('tried', 'tried');
ok(exercise('tried', 'tried'), 'the workers work');
cmp_ok(sql(q(
	SET client_min_messages = warning;
	SET SESSION AUTHORIZATION mallory;
	DO $do$
	DECLARE
		ours record;
		types text[];
	BEGIN
		FOR ours IN
			SELECT p.*, string_to_array(oidvectortypes(p.proargtypes), ', ') AS argument_types FROM pg_proc p
			WHERE p.pronamespace IN ('public'::regnamespace, 'idempotency_internal'::regnamespace)
				AND p.proowner <> 'mallory'::regrole AND p.prokind = 'f'
		LOOP
			FOR given IN ours.pronargs - ours.pronargdefaults .. ours.pronargs LOOP
				FOR variant IN 1..3 LOOP
					types := CASE variant WHEN 1 THEN ours.argument_types[:given]
						WHEN 2 THEN array_fill('text'::text, ARRAY[given])
						ELSE array_replace(array_replace(ours.argument_types[:given], 'regclass', 'text'), 'smallint', 'integer') END;
					BEGIN
						EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS
							$f$ BEGIN PERFORM mallory.strike(); RETURN%s; END $f$', ours.proname, array_to_string(types, ', '),
							pg_get_function_result(ours.oid), CASE WHEN NOT ours.proretset
							AND ours.prorettype NOT IN ('void'::regtype, 'record'::regtype) THEN ' NULL' END);
					EXCEPTION WHEN duplicate_function OR invalid_function_definition OR datatype_mismatch OR syntax_error THEN NULL;
					END;
				END LOOP;
			END LOOP;
		END LOOP;
	END
	$do$;
	SELECT count(*) FROM pg_proc WHERE proowner = 'mallory'::regrole AND pronamespace = 'public'::regnamespace), 'tried'),
	'>', 200, 'overloads are there');
terminate_worker($node, $_, 'tried') for qw(relay sweeper);
ok(exercise('tried', 'tried'), 'the workers go on as before');
sql(q(
	SELECT stock_level('hat'::text), stock_verify('hat'::text), stock_receive('cap'::text, 10::bigint, NULL::text, NULL::text);
	SELECT stock_reserve_many('{"cap": 2}'::jsonb, 'many'::text, '1 h'::interval, 'me'::text, false, false),
		stock_change_many('many'::text, '{"cap": 2}'::jsonb, '1 h'::interval, 'me'::text),
		stock_backorder('cap'::text, 1::bigint, NULL::text, NULL::text), stock_reserve('cap'::text, 20::bigint, 'waits'::text, '1 h'::interval, 'me'::text,
			true, true, '1 h'::interval), stock_reservation_status('waits'::text), stock_cancel('waits'::text, NULL::text[], NULL::text),
		stock_reservation_status('many'::text), stock_transfer('cap'::text, 'hood'::text, 1::bigint, NULL::text, NULL::text);
	SELECT outbox_alter('tried'::text, NULL::text, NULL::text[], NULL::jsonb, NULL::text, 8, NULL::interval, NULL::interval[],
		NULL::numeric, NULL::integer, NULL::jsonpath, NULL::text, NULL::text, NULL::integer, NULL::interval);
	SELECT outbox_pause('tried'::text, 'why'::text), outbox_resume('tried'::text), outbox_ping('tried'::text), outbox_redrive('tried'::text, NULL::bigint[]),
		outbox_retry('tried'::text, NULL::bigint[]), outbox_event_id(1::bigint), idempotency_status(),
		outbox_discard('tried'::text, NULL::bigint[]), outbox_erase('k'::text, '{none}'::text[], 10), idem_erase('k'::text, ''::text),
		outbox_acknowledge_lost('tried'::text), outbox_replay('tried'::text, 1::bigint, NULL::timestamptz),
		outbox_rotate_secret('tried'::text, '1 h'::interval, NULL::text), outbox_adopt(true),
		outbox_rotate_key('tried'::text, '1 h'::interval, NULL::text), outbox_public_key('tried'::text);
	SELECT outbox_subscribe('new'::text, 'http://127.0.0.1:1/'::text, '{none}'::text[], NULL::text, NULL::jsonb, 'standard'::text, true,
		8, '1 s'::interval, '{0 s}'::interval[], 'latest'::text, 1, NULL::numeric, 1, NULL::jsonpath,
		outbox_key_generate(), NULL::text, NULL::text, 1, NULL::interval);
	SELECT outbox_subscribe('read'::text, NULL::text, '{read}'::text[], NULL::text, NULL::jsonb, 'standard'::text, true,
		8, '1 s'::interval, '{0 s,1 s}'::interval[], 'latest'::text, 1, NULL::numeric, 1, '$.n > 0'::jsonpath,
		NULL::text, NULL::text, NULL::text, 1, NULL::interval);
	SELECT outbox_topic('read'::text, NULL::jsonb, 'is read'::text),
		outbox_enqueue('read'::text, '{"n": 1}'::jsonb, NULL::text, NULL::text, NULL::jsonb, NULL::timestamptz,
			NULL::timestamptz, 'once'::text, '1 h'::interval, true),
		outbox_cancel(outbox_enqueue('read'::text, '{"n": 2}'::jsonb, NULL::text, NULL::text, NULL::jsonb, now() + interval '1 h',
			NULL::timestamptz, NULL::text, NULL::interval, false));
	CALL idem_wait('once'::text, 'outbox:read'::text, '1 s'::interval);
	SELECT outbox_ack('read'::text, f.token, ARRAY[f.position], 'no'::text) FROM outbox_fetch('read'::text, 10, '1 min'::interval) f;
	CALL outbox_wait('read'::text, '5 s'::interval);
	SELECT outbox_ack('read'::text, f.token, '{}'::bigint[], NULL::text) FROM outbox_fetch('read'::text, 10, '1 min'::interval) f;
	SELECT outbox_unsubscribe('new'::text);
	SELECT count(*) FROM outbox_subscriptions, outbox_deliveries, idem_stats, idem_keys, stock_levels, stock_holds, stock_waiting, idempotency_segments), 'tried');
is(victims(), '', 'and nothing of hers is run but by herself');

# --- a role with all privileges on all tables

sql('CREATE DATABASE granted');
sql("CREATE EXTENSION idempotency; GRANT ALL ON ALL TABLES IN SCHEMA public, idempotency_internal TO mallory;
	GRANT USAGE ON SCHEMA idempotency_internal TO mallory; GRANT CREATE ON DATABASE granted TO mallory; $strike;
	CREATE TYPE mallory.id AS ENUM ('one');
	CREATE FUNCTION mallory.to_number(mallory.id) RETURNS bigint LANGUAGE sql AS 'SELECT mallory.strike(); SELECT 1::bigint';
	CREATE CAST (mallory.id AS bigint) WITH FUNCTION mallory.to_number AS IMPLICIT", 'granted');
wait_for_workers($node, 'granted');
my %refused = (
	'a trigger' => 'CREATE TRIGGER t BEFORE INSERT OR UPDATE ON outbox_partition FOR EACH ROW EXECUTE FUNCTION mallory.strike_trigger()',
	'a trigger of a view' => 'CREATE TRIGGER t INSTEAD OF DELETE ON outbox_log FOR EACH ROW EXECUTE FUNCTION mallory.strike_trigger()',
	'a foreign key, checked as the owner with a cast' => 'CREATE TABLE mallory.t (id mallory.id REFERENCES outbox_subscription)',
	'a rule' => 'CREATE RULE r AS ON UPDATE TO outbox_partition DO ALSO SELECT mallory.strike()',
	'a default' => 'ALTER TABLE outbox_attempt ALTER at SET DEFAULT now()',
	'a constraint' => 'ALTER TABLE outbox_partition ADD CHECK (mallory.strike() IS NULL)',
	'an index' => 'CREATE INDEX ON outbox_partition ((mallory.strike()))',
	'row security' => 'ALTER TABLE outbox_partition ENABLE ROW LEVEL SECURITY',
	'a policy' => 'CREATE POLICY p ON outbox_partition USING (mallory.strike() IS NULL)',
	'a child' => 'CREATE TABLE mallory.child () INHERITS (outbox_partition)',
	'an event trigger' => 'CREATE EVENT TRIGGER e ON sql_drop EXECUTE FUNCTION mallory.strike_trigger()',
	'another function of ours' => 'ALTER EXTENSION idempotency ADD FUNCTION mallory.strike()',
	'no extension' => 'DROP EXTENSION idempotency',
);
is(code_as('mallory', $refused{$_}, 'granted'), '42501', "all privileges on tables are none for $_") for sort keys %refused;
is(code_as('mallory', 'CREATE TABLE mine (); CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION mallory.strike_trigger()',
		'granted') . error_code($node, 'granted',
		'CREATE TRIGGER t INSTEAD OF UPDATE ON outbox_log FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger(); DROP TRIGGER t ON outbox_log'),
	'', 'who has the right can create triggers');
subscribe_all('granted', 'granted');
ok(exercise('granted', 'granted'), 'the workers work');
is(victims(), '', 'and run nothing of hers');

# --- an application with objects of its own of the same names

sql(q(SELECT idempotency_grant('mallory')), 'granted');
my $names = q(
	CREATE TEMP TABLE outbox_subscription (); CREATE TEMP TABLE stock_item (); CREATE TEMP TABLE stock_log ();
	CREATE TEMP TABLE idem_ring (); CREATE TEMP TABLE idem_key_0 (); CREATE TEMP TABLE outbox_log_0 (); CREATE TEMP VIEW stock_levels AS SELECT;
	CREATE FUNCTION mallory.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT mallory.strike(); SELECT pg_catalog.now()';
	CREATE FUNCTION mallory.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT mallory.strike(); SELECT pg_catalog.now()';
	CREATE FUNCTION mallory.eq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT mallory.strike(); SELECT true';
	CREATE OPERATOR mallory.= (LEFTARG = text, RIGHTARG = text, FUNCTION = mallory.eq);
	SET search_path = mallory, pg_temp, pg_catalog, public;);
is(code_as('mallory', "$names
	SELECT idem_claim('mine'), outbox_enqueue('t', '{}'), stock_reserve('hat', 1, 'mine'), stock_level('hat');
	SELECT idem_claim_many('{a,b}'); SELECT stock_cancel('mine')", 'granted'), '', 'an application may hide all names');
is(victims(), '', 'and none of them is used with the rights of others');

# --- the owner of a database

sql('CREATE ROLE landlord LOGIN; CREATE DATABASE rented OWNER landlord');
sql('CREATE EXTENSION idempotency', 'rented');
wait_for_workers($node, 'rented');
is(code_as('landlord', 'CREATE TABLE mine ()', 'rented'), '', 'the owner of a database may create in the schema public');
%refused = (
	'ALTER SCHEMA public RENAME TO moved' => '42501',
	'DROP EXTENSION idempotency' => '42501',
	'DROP VIEW outbox_dead CASCADE' => '2BP01',
	'DROP FUNCTION idem_renew CASCADE' => '2BP01',
	'ALTER VIEW outbox_dead RENAME TO dead' => '42501',
	'ALTER SCHEMA idempotency_internal RENAME TO moved' => '42501',
	'ALTER SCHEMA idempotency_internal OWNER TO landlord' => '42501',
	'GRANT USAGE ON SCHEMA idempotency_internal TO landlord' => '42501',
	'DROP SCHEMA idempotency_internal CASCADE' => '42501',
	'CREATE TABLE idempotency_internal.mine ()' => '42501',
	'DROP TABLE idempotency_internal.outbox_partition CASCADE' => '42501',
	'DROP INDEX idempotency_internal.outbox_delivery_due_at_idx' => '42501',
	'DROP FUNCTION idempotency_internal.idem_switch() CASCADE' => '42501',
	'ALTER TABLE idempotency_internal.outbox_partition RENAME TO mine' => '42501',
	'ALTER DATABASE rented SET idempotency.relays = 8' => '55P02',
	'ALTER ROLE landlord SET idempotency.databases = nowhere' => '55P02',
	'ALTER DATABASE rented SET idempotency.stock_events = off' => '42501',
	'ALTER DATABASE rented SET session_replication_role = replica' => '42501',
);
is(code_as('landlord', $_, 'rented'), $refused{$_}, "$_: not for him") for sort keys %refused;
is(code_as('landlord', 'ALTER DATABASE rented SET role = landlord; ALTER DATABASE rented SET search_path = nowhere;'
		  . "ALTER DATABASE rented SET idempotency.ttl = '1 s'; ALTER DATABASE rented SET transform_null_equals = on"),
	'', 'what he may set');
ok(terminate_worker($node, $_, 'rented'), "does not keep a $_ from starting") for qw(relay sweeper);
sql('ALTER DATABASE rented RESET ALL');
subscribe_all('rented', 'rented');
ok(exercise('rented', 'rented'), 'nor from its work');
is(code_as('landlord', 'ALTER SCHEMA public OWNER TO landlord', 'rented'), '', 'ours he may own');
is(code_as('landlord', 'ALTER SCHEMA public RENAME TO moved', 'rented'), '42501', 'and not rename even so');
is(code_as('landlord', 'CREATE SCHEMA other; ALTER SCHEMA other RENAME TO another', 'rented'), '', 'other schemas he may rename');

# --- an owner of the extension who is not a superuser

sql('CREATE ROLE boss SUPERUSER; CREATE DATABASE sold');
sql('SET SESSION AUTHORIZATION boss; CREATE EXTENSION idempotency', 'sold');
wait_for_workers($node, 'sold');
sql("GRANT CREATE ON DATABASE sold TO mallory; GRANT CREATE ON SCHEMA public TO mallory; REASSIGN OWNED BY boss TO mallory; $strike", 'sold');
sql('SELECT outbox_wake()', 'sold');
ok($node->poll_query_until('postgres', q(SELECT string_agg(DISTINCT usename, ' ') = 'mallory' AND count(*) = 2
	FROM pg_stat_activity WHERE datname = 'sold' AND backend_type ~ '^idempotency')), 'the workers run as the owner, by themselves');
%refused = (
	'a column less' => 'ALTER TABLE idem_ring DROP COLUMN rest_until',
	'a column of another type' => 'ALTER TABLE idem_ring ALTER COLUMN rest_until TYPE text USING NULL',
	'one more column' => 'ALTER TABLE outbox_partition ADD COLUMN more text',
	'a column that may be null' => 'ALTER TABLE stock_hold ALTER COLUMN expires_at DROP NOT NULL',
	'a field of a type' => 'ALTER TYPE idem_answer ADD ATTRIBUTE more text',
	'a trigger' => 'CREATE TRIGGER t BEFORE UPDATE ON outbox_partition FOR EACH ROW EXECUTE FUNCTION mallory.strike_trigger()',
	'a schema of another name' => 'ALTER SCHEMA idempotency_internal RENAME TO moved',
);
is(code_as('mallory', $refused{$_}, 'sold'), '42501', "he may not have our C code meet $_") for sort keys %refused;
is(code_as('mallory', 'CREATE RULE r AS ON UPDATE TO outbox_ring DO ALSO SELECT mallory.strike()', 'sold'), '', 'he may have a rule');
my $own = () = slurp_file($node->logfile) =~ /hostile code runs as mallory/g;
subscribe_all('sold', 'sold');
ok(exercise('sold', 'sold'), 'the workers work');
my $more = () = slurp_file($node->logfile) =~ /hostile code runs as mallory/g;
cmp_ok($more, '>', $own, 'and run it');
is(victims(), '', 'as him who made it');
is(sql('SELECT rolsuper FROM pg_roles WHERE rolname = \'mallory\''), 'f', 'nobody has become a superuser');

# --- an owner who is not a superuser any more: without LOGIN, workers run as
# the bootstrap superuser

sql('CREATE ROLE admin SUPERUSER NOLOGIN; CREATE DATABASE hardened');
sql('SET SESSION AUTHORIZATION admin; CREATE EXTENSION idempotency', 'hardened');
wait_for_workers($node, 'hardened');
sql('ALTER ROLE admin NOSUPERUSER');
sql('SELECT outbox_wake()', 'hardened');
ok($node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity
	WHERE datname = 'hardened' AND backend_type ~ '^idempotency (relay|sweeper)' AND usesysid = 10)), 'they do not run for him');

# --- a schema with the name of ours that is not ours, as in version 0.2.0

sql('CREATE DATABASE older; CREATE DATABASE younger');
sql('BEGIN; CREATE EXTENSION idempotency; ALTER EXTENSION idempotency DROP SCHEMA idempotency_internal; COMMIT', 'older');
sql('CREATE EXTENSION idempotency', 'younger');
is(error_code($node, 'older', "SELECT $_"), '55000', "its tables are not used: $_")
  for q(idem_claim('k')), q(outbox_enqueue('t', '{}')), q(stock_receive('hat', 1));
wait_for_workers($node, 'younger');
is(sql(q(SELECT count(*) FROM pg_stat_activity WHERE datname = 'older' AND backend_type ~ '^idempotency (relay|sweeper)')), '0',
	'and no worker runs there');

done_testing();
