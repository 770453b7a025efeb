# Workers come and go with the extension, run as its owner, are restarted, and
# do not block others.  If this fails, deliveries stop until a person notices
# and restarts the server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = new_server('workers');
$node->start;

sub owners
{
	my ($db) = @_;
	return sql(qq(
		SELECT string_agg(backend_type || ' ' || usename, ', ' ORDER BY backend_type)
		FROM pg_stat_activity WHERE datname = '$db' AND backend_type LIKE 'idempotency %'));
}

# Does the launcher use almost no CPU time for a while?
sub sleeps
{
	my ($server) = @_;
	my $pid = worker_pid($server, 'launcher');
	my $ticks = sub { my @stat = split(/ /, slurp_file("/proc/$pid/stat")); return $stat[13] + $stat[14] };
	my $before = $ticks->();

	$server->safe_psql('postgres', 'SELECT pg_sleep(0.5)');
	return $ticks->() - $before < 20 ? 1 : 0;
}

# --- CREATE and DROP EXTENSION

is(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency %'"), '1',
	'without the extension there is a launcher and nothing else');
sql('CREATE EXTENSION idempotency');
ok(wait_for_workers($node), 'CREATE EXTENSION starts workers in a running server');
subscribe($node, $receiver, '/hold/first');
# As many as are out at a time before one is answered.
sql(q(SELECT count(outbox_enqueue('t', '{}')) FROM generate_series(1, 10)));
$receiver->wait_for('first', requests => 8);
sql('DROP EXTENSION idempotency');
ok(wait_for_no_workers($node), 'DROP EXTENSION ends them, with requests out');
is(sql("SELECT count(*) FROM pg_class WHERE relname ~ '^(idem|outbox|stock)_'")
	  + sql("SELECT count(*) FROM pg_namespace WHERE nspname ~ '^idem'"), 0, 'nothing is left behind');

# Producers and workers take the same locks as DROP EXTENSION.
my $producing = $node->basedir . '/enqueue.sql';
my @codes;
append_to_file($producing, "SELECT outbox_enqueue('t', '{}', key => 'k');\n");
for my $round (1 .. 8)
{
	sql('CREATE EXTENSION idempotency');
	subscribe($node, $receiver, "/ok/round$round");
	my $producers = IPC::Run::start([ 'pgbench', '-n', '-f', $producing, '-c', '3', '-T', '60',
			$node->connstr('postgres') ], '>', '/dev/null', '2>&1');
	$receiver->wait_for("round$round", requests => 20);
	push @codes, error_code($node, 'postgres', 'DROP EXTENSION idempotency');
	sql('DROP EXTENSION IF EXISTS idempotency');
	$producers->finish;		# the functions do not exist any more
}
is(join(' ', @codes), ' ' x 7, 'it can be dropped and created again while events come and go');
sql('BEGIN; CREATE EXTENSION idempotency; ROLLBACK');
sql('CREATE SCHEMA "Idem Potency"; CREATE EXTENSION idempotency SCHEMA "Idem Potency"');
wait_for_workers($node);
sql("SELECT \"Idem Potency\".outbox_subscribe('schema', '" . $receiver->url('/ok/schema') . "')");
sql(q(SELECT "Idem Potency".outbox_enqueue('t', '{"n": 1}')));
$receiver->wait_for('schema', events => 1);
is($receiver->numbers('schema'), '1', 'it works in another schema');
sql(q(SELECT "Idem Potency".idem_claim('k', ttl => '1 ms')));
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM "Idem Potency".idem_key'),
	'so does the sweeper');

# --- several databases, an owner that is not the bootstrap superuser

sql('CREATE ROLE boss SUPERUSER LOGIN; CREATE ROLE heir SUPERUSER LOGIN; CREATE ROLE nobody LOGIN');
sql('CREATE DATABASE owned');
$node->safe_psql('owned', 'SET SESSION AUTHORIZATION boss; CREATE EXTENSION idempotency');
wait_for_workers($node, 'owned');
is(owners('owned'), 'idempotency relay boss, idempotency sweeper boss',
	"workers run as the extension's owner");
subscribe($node, $receiver, '/ok/owned', db => 'owned');
$node->safe_psql('owned', q(SELECT outbox_enqueue('t', '{"n": 1}')));
sql(q(SELECT "Idem Potency".outbox_enqueue('t', '{"n": 2}')));
$receiver->wait_for('owned', events => 1);
$receiver->wait_for('schema', events => 2);
is($receiver->numbers('owned') . ', ' . $receiver->numbers('schema'), '1, 1 2',
	'each database delivers its own events');
$node->safe_psql('owned', 'REASSIGN OWNED BY boss TO heir; DROP ROLE boss');
ok(terminate_worker($node, $_, 'owned'), "the $_ comes back after its role is gone") for qw(relay sweeper);
is(owners('owned'), 'idempotency relay heir, idempotency sweeper heir', 'as the new owner');
sql('ALTER ROLE heir NOLOGIN');
terminate_worker($node, $_, 'owned') for qw(relay sweeper);
my $first = sql('SELECT usename FROM pg_user WHERE usesysid = 10');
is(owners('owned'), "idempotency relay $first, idempotency sweeper $first",
	'a superuser who cannot log in is stood in for by the first one');
sql('ALTER ROLE heir LOGIN');

# --- settings that users make for clients

sql(q(
	ALTER DATABASE owned SET default_transaction_read_only = on;
	ALTER DATABASE owned SET default_transaction_isolation = serializable;
	ALTER DATABASE owned SET search_path = nowhere;
	ALTER DATABASE owned SET lock_timeout = '1ms';
	ALTER DATABASE owned SET statement_timeout = '1ms';
	ALTER DATABASE owned SET idle_in_transaction_session_timeout = '1ms';
	ALTER DATABASE owned SET synchronous_commit = off;
	ALTER DATABASE owned SET "DateStyle" = 'German';
	ALTER DATABASE owned SET "IntervalStyle" = 'sql_standard';
	ALTER DATABASE owned SET "TimeZone" = 'Asia/Kathmandu'));
terminate_worker($node, $_, 'owned') for qw(relay sweeper);
sql('ALTER DATABASE owned RESET ALL');		# for new sessions
$node->safe_psql('owned', q(SELECT outbox_enqueue('t', '{"n": 3}'); SELECT idem_claim('k', ttl => '1 ms')));
$receiver->wait_for('owned', events => 2);
like(($receiver->requests('owned'))[-1]{body}, qr/"timestamp":"20\d\d-\d\d-\d\dT[\d:.]+Z"/,
	'settings of the database do not reach into the relay');
ok($node->poll_query_until('owned', 'SELECT count(*) = 0 FROM idem_key'), 'nor into the sweeper');

# Every setting of a user or superuser has another value, but those that only
# limit memory, and those that log.
$node->safe_psql('owned', <<'EOF');
CREATE FUNCTION other_value(s pg_settings) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN s.vartype = 'bool' THEN CASE s.boot_val WHEN 'on' THEN 'off' ELSE 'on' END
		WHEN s.vartype = 'enum' THEN (SELECT max(v) FROM unnest(s.enumvals) v WHERE v <> s.boot_val)
		WHEN s.name ~ 'timeout$' THEN '1'
		WHEN s.vartype IN ('integer', 'real') THEN s.min_val
		WHEN s.name = 'restrict_nonsystem_relation_kind' THEN 'view,foreign-table'
		WHEN s.name = 'search_path' THEN 'nowhere'
		WHEN s.name = 'DateStyle' THEN 'German' END
$$;
DO $$
DECLARE
	s pg_settings;
	n integer := 0;
BEGIN
	FOR s IN SELECT * FROM pg_settings WHERE context IN ('user', 'superuser') AND name !~ '\.|^(log_|trace_|max_stack_depth|transaction_|client_encoding)'
		AND other_value(pg_settings) IS NOT NULL LOOP
		EXECUTE format('ALTER DATABASE owned SET %I = %L', s.name, other_value(s));
		n := n + 1;
	END LOOP;
	ASSERT n > 100, 'few settings';
END
$$;
ALTER DATABASE owned SET plpgsql.extra_errors = 'all';
ALTER DATABASE owned SET plpgsql.variable_conflict = 'use_column';
ALTER DATABASE owned SET role = 'pg_monitor';
EOF
terminate_worker($node, $_, 'owned') for qw(relay sweeper);
my @pids = map { worker_pid($node, $_, 'owned') } qw(relay sweeper);
sql('ALTER DATABASE owned RESET ALL');
$node->safe_psql('owned', q(SELECT outbox_enqueue('t', '{"n": 4}'); SELECT idem_claim('l', ttl => '1 ms');
	SELECT stock_receive('hat', 1); SELECT stock_reserve('hat', 1, 'lapses', ttl => '1 ms')));
ok($receiver->wait_for('owned', events => 3), 'none of the settings keeps the relay from sending');
# A locked row makes an error of the relay, which must go on.
subscribe($node, $receiver, '/fail/busy', db => 'owned', topics => "'{busy}'", retry_schedule => "'{0 s,4 s,1 s}'");
$node->safe_psql('owned', q(SELECT outbox_enqueue('busy', '{}')));
ok($node->poll_query_until('owned', q(SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'busy')), 'nor from noting a failure');
my $lock = session($node, 'owned');
$lock->query_safe('BEGIN; SELECT FROM outbox_delivery FOR UPDATE');
ok($node->poll_query_until('owned', q(SELECT state = 'stuck' AND reason ~ 'locked' FROM outbox_subscriptions WHERE name = 'busy')),
	'nor from telling that a row is locked');
finish($lock, 'COMMIT');
ok($node->poll_query_until('owned', q(SELECT state = 'active' AND dead = 1 FROM outbox_subscriptions WHERE name = 'busy')), 'nor from going on');
ok($node->poll_query_until('owned', q(SELECT (SELECT count(*) = 0 FROM idem_key) AND (SELECT count(*) = 0 FROM stock_hold))), 'nor the sweeper');
is(join(' ', map { worker_pid($node, $_, 'owned') } qw(relay sweeper)), "@pids", 'and both are still those that had the settings');

# --- which databases

$node->append_conf('postgresql.conf', "idempotency.databases = 'postgres'");
$node->reload;
ok(wait_for_no_workers($node, 'owned'), 'idempotency.databases ends workers at a reload');
is(owners('postgres') ? 1 : 0, 1, 'but not where they are wanted');
$node->safe_psql('owned', 'DROP EXTENSION idempotency; CREATE EXTENSION idempotency');
is(sleeps($node), 1, 'the launcher does not mind what happens where it is not wanted');
is(owners('owned'), '', 'and starts nothing there');
$node->append_conf('postgresql.conf', "idempotency.databases = ''");
$node->reload;
ok(wait_for_workers($node, 'owned'), 'and an empty list brings them back');

# --- objects of the extension, and everything that a role owns

is(error_code($node, 'owned', "DROP TABLE $_ CASCADE"), '2BP01', "$_ goes with the extension only") for qw(idem_key_0 outbox_partition stock_log);
$node->safe_psql('owned', "ALTER EXTENSION idempotency DROP $_; ALTER EXTENSION idempotency ADD $_")
  for ('TABLE outbox_partition', 'FUNCTION idem_switch()', 'VIEW outbox_dead');
subscribe($node, $receiver, '/ok/pieces', db => 'owned');
$node->safe_psql('owned', q(SELECT outbox_enqueue('t', '{"n": 1}')));
ok($receiver->wait_for('pieces', events => 1), 'a piece can leave the extension and come back');
$node->safe_psql('owned', 'CREATE ROLE owner SUPERUSER; DROP EXTENSION idempotency;'
	  . 'SET SESSION AUTHORIZATION owner; CREATE EXTENSION idempotency');
wait_for_workers($node, 'owned');
$node->safe_psql('owned', 'DROP OWNED BY owner');
ok(wait_for_no_workers($node, 'owned'), 'DROP OWNED ends the workers');

# --- too few slots

my $small = new_server('small');
$small->append_conf('postgresql.conf', <<'EOF');
max_worker_processes = 3
shared_preload_libraries = 'pg_stat_statements, idempotency'	# whose hooks come first
EOF
$small->start;
$small->safe_psql('postgres', 'CREATE DATABASE second');
$small->safe_psql($_, 'CREATE EXTENSION idempotency') for qw(postgres second);
ok($small->wait_for_log(qr/WARNING:  could not start idempotency \w+: no free background worker slot/),
	'too few background worker slots are reported');
is(sleeps($small), 1, 'but not all the time');
is($small->safe_psql('second', "SELECT outcome FROM idem_claim('k')"), 'claimed',
	'and break nothing');
$small->stop;

done_testing();
