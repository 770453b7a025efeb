# With synchronous standbys, the relay sends nothing new that none of them has,
# whatever way a transaction came to be visible before that: its session asked
# for synchronous_commit = local, its wait was cancelled, or the server crashed.
# If this fails, a failover leaves receivers with events of transactions that
# never were.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(sleep);

use constant { PASSES => 5, LOAD_S => 8, STOPPED_S => 0.03, RUNNING_S => 0.02, FETCH_MAX_S => 60, PAUSE_S => 0.05 };

my $receiver = Receiver->start;
my $node = start_server('primary', allows_streaming => 1, conf => <<EOF);
max_prepared_transactions = 5
synchronous_commit = local
EOF
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

# A standby whose walreceiver is stopped confirms nothing.
my $walreceiver;

sub pause
{
	$walreceiver = $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver')
	  unless $walreceiver && kill(0 => $walreceiver);
	kill(STOP => $walreceiver) or die 'there is no walreceiver';
	return;
}

sub resume
{
	kill(CONT => $walreceiver) or die 'the walreceiver is gone';
	return;
}

sub numbers { return $receiver->distinct_numbers('shop'); }

# Several passes are over, and nothing was sent.
sub is_held
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_pass($node) for 1 .. PASSES;
	is(sql('SELECT idempotency_internal.outbox_unreplicated_since() IS NOT NULL'), 't', "$what: the relay waits for a standby");
	is(numbers(), $expected, "$what: nothing is sent");
	is(sql(q(SELECT count(*) FROM outbox_fetch('pull'))), '0', "$what: nothing is handed out");
	return;
}

# What is handed out: its number and its token.  A call reads a part of the log
# only, and the load writes more than that.
sub fetch
{
	my $query = q(SELECT payload ->> 'n', token FROM outbox_fetch('pull'));
	my $until = time + FETCH_MAX_S;
	my $row;

	while (($row = sql($query)) eq '' && time < $until)
	{
		sleep PAUSE_S;
	}
	return split(/\|/, $row);
}

sub arrives
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $count = () = $expected =~ /\d+/g;
	$receiver->wait_for('shop', events => $count);
	is(numbers(), $expected, "$what: it is sent then");
	$node->poll_query_until('postgres', 'SELECT idempotency_internal.outbox_unreplicated_since() IS NULL')
		or die 'the relay waits for a standby that has everything';
	my ($number, $token) = fetch();
	is($number, (split(/ /, $expected))[-1], "$what: and is handed out");
	sql("SELECT outbox_ack('pull', $token)");
	return;
}

# Enqueues an event in a session that waits for the standby.
sub enqueue_and_wait
{
	my ($number) = @_;
	my $session = session($node);
	$session->query_safe('SET synchronous_commit = on');
	$session->query_until(qr/begun/, qq(\\echo begun\nSELECT outbox_enqueue('t', '{"n": $number}');\n));
	return $session;
}

# Waits until its commit waits.
sub wait_for_its_commit
{
	$node->poll_query_until('postgres', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'))
		or die 'the commit does not wait';
	return;
}

# With such a load there is no moment at which the standby has everything.
sub use_load
{
	subscribe($node, $receiver, '/ok/load', topics => "'{load}'");
	my $file = "$PostgreSQL::Test::Utils::tmp_check/load.sql";
	append_to_file($file, "SELECT outbox_enqueue('noise', '{}');\n");
	my $load = IPC::Run::start([ 'pgbench', '-n', '-f', $file, '-c', '4', '-T', LOAD_S, $node->connstr('postgres') ],
		'<', \undef, '>', \my $output, '2>&1');
	my $until = time + LOAD_S - 1;
	my $enqueued = 0;
	while (time < $until)
	{
		enqueue_numbers($node, 'load', ++$enqueued);
		for (1 .. 4)
		{
			pause();
			sleep STOPPED_S;
			resume();
			sleep RUNNING_S;
		}
	}
	my $sent = $receiver->requests('load');
	ok($load->pumpable, 'there is a load');
	cmp_ok($sent, '>', $enqueued / 2, 'while the standby is always a bit behind, events are sent');
	$load->finish;
	sql(q(SELECT outbox_unsubscribe('load')));
	return;
}

subscribe($node, $receiver, '/ok/shop', topics => "'{t}'");
sql(q(SELECT outbox_subscribe('pull', NULL, '{t}')));
wait_for_workers($node);

# Without synchronous standbys, the relay waits for none.
pause();
enqueue_numbers($node, 't', 1);
$receiver->wait_for('shop', events => 1);
is(numbers(), '1', 'without synchronous_standby_names, an event is sent');
is(sql(q(SELECT count(*) FROM idempotency_status() WHERE "check" = 'synchronous standbys')), '0', 'and nothing is said of them');
resume();
sql(q(ALTER SYSTEM SET synchronous_standby_names = '*'));
$node->reload;
$node->poll_query_until('postgres', q(SELECT sync_state = 'sync' FROM pg_stat_replication)) or die 'the standby is not synchronous';
arrives('1', 'the first');

my $session = enqueue_and_wait(2);
arrives('1 2', 'with a standby that works');
$session->quit;

pause();
enqueue_numbers($node, 't', 3);
is_held('1 2', 'synchronous_commit = local');
is(sql(q(SELECT state, detail ~ '^no new event is sent for' FROM idempotency_status() WHERE "check" = 'synchronous standbys')),
	'ok|t', 'it is not a warning at once');
$node->poll_query_until('postgres', q(SELECT state = 'warning' AND hint LIKE '%pg_stat_replication'
	FROM idempotency_status() WHERE "check" = 'synchronous standbys')) or die 'there is no warning after some time';
resume();
arrives('1 2 3', 'synchronous_commit = local');

# A cancelled wait leaves the transaction committed.
pause();
$session = enqueue_and_wait(4);
wait_for_its_commit();
wait_for_pass($node);
is(numbers(), '1 2 3', 'a commit that waits: nothing is sent');
sql(q(SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'));
$node->poll_query_until('postgres', q(SELECT count(*) = 1 FROM outbox_log WHERE payload ->> 'n' = '4')) or die 'it is not visible';
is_held('1 2 3', 'a cancelled wait');
resume();
arrives('1 2 3 4', 'a cancelled wait');
eval { $session->quit };

# After a crash, a commit that waited is visible.
pause();
$session = enqueue_and_wait(5);
wait_for_its_commit();
$node->stop('immediate');
eval { $session->quit };
$node->start;
is(sql(q(SELECT count(*) FROM outbox_log WHERE payload ->> 'n' = '5')), '1', 'after a crash, the commit is visible');
wait_for_workers($node);
is_held('1 2 3 4', 'a crash');
resume();
arrives('1 2 3 4 5', 'a crash');

# Without relays, nobody has looked since the start.
alter_system('idempotency.databases', "'template1'");
wait_for_no_workers($node);
pause();
$session = enqueue_and_wait(6);
wait_for_its_commit();
$node->stop('immediate');
eval { $session->quit };
$node->start;
is(sql(q(SELECT count(*) FROM outbox_fetch('pull'))), '0', 'after a crash, without relays: nothing is handed out');
resume();
$node->poll_query_until('postgres', q(SELECT sync_state = 'sync' FROM pg_stat_replication)) or die 'the standby does not come back';
my (undef, $token) = fetch();
like($token, qr/^\d+$/, 'until the standby has it');
sql("SELECT outbox_ack('pull', $token)");
sql('ALTER SYSTEM RESET idempotency.databases');
$node->reload;
wait_for_workers($node);

# A steady load of local commits, and a standby that is always a bit behind.
use_load();

# A transaction that was prepared, and ended without a wait.
pause();
sql(q(BEGIN; SELECT outbox_enqueue('t', '{"n": 7}'); PREPARE TRANSACTION 'p'));
sql(q(COMMIT PREPARED 'p'));
is_held('1 2 3 4 5 6', 'a prepared transaction');
resume();
arrives('1 2 3 4 5 6 7', 'a prepared transaction');

# One that an apply worker commits, which notes nothing.
my $publisher = PostgreSQL::Test::Cluster->new('publisher');
$publisher->init(allows_streaming => 'logical');
$publisher->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
$publisher->start;
$publisher->safe_psql('postgres', 'CREATE TABLE orders (n int PRIMARY KEY); CREATE PUBLICATION orders FOR TABLE orders');
my $connection = $publisher->connstr . ' dbname=postgres';
sql(<<"SQL");
CREATE TABLE orders (n int PRIMARY KEY);
CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS \$\$
BEGIN
	PERFORM outbox_enqueue('t', jsonb_build_object('n', NEW.n));
	RETURN NEW;
END
\$\$;
CREATE TRIGGER announce AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION announce();
ALTER TABLE orders ENABLE ALWAYS TRIGGER announce;
CREATE SUBSCRIPTION orders CONNECTION '$connection' PUBLICATION orders WITH (two_phase = true, copy_data = false);
SQL
$node->poll_query_until('postgres', q(SELECT subtwophasestate = 'e' FROM pg_subscription)) or die 'no two-phase replication';
$publisher->safe_psql('postgres', q(BEGIN; INSERT INTO orders VALUES (8); PREPARE TRANSACTION 'order'));
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_prepared_xacts') or die 'the apply worker prepares nothing';
wait_for_pass($node);
pause();
$publisher->safe_psql('postgres', q(COMMIT PREPARED 'order'));
$node->poll_query_until('postgres', q(SELECT count(*) = 1 FROM outbox_log WHERE topic = 't' AND payload ->> 'n' = '8')) or die 'it is not visible';
is_held('1 2 3 4 5 6 7', 'a commit by an apply worker');
resume();
arrives('1 2 3 4 5 6 7 8', 'a commit by an apply worker');

# The same, prepared before a restart, when no relay has looked since the start.
$publisher->safe_psql('postgres', q(BEGIN; INSERT INTO orders VALUES (9); PREPARE TRANSACTION 'order'));
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_prepared_xacts') or die 'the apply worker prepares nothing';
sql(q(ALTER SYSTEM SET idempotency.databases = 'template1'));
$node->restart;
$node->poll_query_until('postgres', q(SELECT sync_state = 'sync' FROM pg_stat_replication)) or die 'the standby does not come back';
sql(q(SELECT outbox_enqueue('none', '{}')));
wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL), 'the apply worker is back');
pause();
$publisher->safe_psql('postgres', q(COMMIT PREPARED 'order'));
$node->poll_query_until('postgres', q(SELECT count(*) = 1 FROM outbox_log WHERE topic = 't' AND payload ->> 'n' = '9')) or die 'it is not visible';
is(sql(q(SELECT count(*) FROM outbox_fetch('pull'))), '0', 'a commit by an apply worker after a restart: nothing is handed out');
resume();
sql('ALTER SYSTEM RESET idempotency.databases');
$node->reload;
arrives('1 2 3 4 5 6 7 8 9', 'a commit by an apply worker after a restart');
sql('DROP SUBSCRIPTION orders');
$publisher->stop;

# The administrator gives the standby up.
pause();
enqueue_numbers($node, 't', 10);
is_held('1 2 3 4 5 6 7 8 9', 'a standby that does not come back');
sql(q(ALTER SYSTEM RESET synchronous_standby_names));
$node->reload;
$receiver->wait_for('shop', events => 10);
is(numbers(), '1 2 3 4 5 6 7 8 9 10', 'without synchronous_standby_names again, it is sent');
resume();

done_testing();
