# While nothing is due, a server uses no transaction id and writes no WAL, in
# ten minutes by the clock, with the settings that it has by default.  Each
# database here is in another state.  If this fails, an idle server uses up
# transaction ids, wakes its disks, and fills archives.
#
# idle.pl finds most of it in seconds.  This finds what happens at longer
# intervals: timers of minutes, checkpoints and autovacuum.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(sleep time);

# How long it is idle; and how long before that, so that autovacuum has been in
# each database, and the server has noted what was done.
use constant { IDLE_S => $ENV{IDLE_SECONDS} // 600, QUIET_S => 70, NOTED_S => 20, QUIET_MAX_S => 900 };

# The id of the next transaction, and the end of the WAL.
use constant USED => 'SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn()';

my $receiver = Receiver->start;
my $node = new_server('idle_minutes', allows_streaming => 1,
	conf => "max_worker_processes = 40\nidempotency.audit_retention = '1y'\nidempotency.stock_events = on");
$node->start;

# What there is in each database; the events of all are for another topic.
my %states = (
	empty => '',
	delivered => q(
		SELECT outbox_subscribe('reader', NULL);
		SELECT outbox_enqueue('t', to_jsonb(n), key => 'k' || n % 3) FROM generate_series(1, 100) n;
		SELECT outbox_ack('reader', max(token)) FROM outbox_fetch('reader', 1000)),
	unread => q(
		SELECT outbox_subscribe('reader', NULL), outbox_subscribe('filtered', NULL, filter => '$.n > 5');
		SELECT outbox_enqueue('t', jsonb_build_object('n', n), key => 'k' || n % 3) FROM generate_series(1, 100) n;
		SELECT count(*) FROM outbox_fetch('reader', 10, lease => '1 d')),
	paused => q(
		SELECT outbox_subscribe('paused', 'http://127.0.0.1:9/');
		SELECT outbox_pause('paused', 'for the test');
		SELECT outbox_enqueue('t', to_jsonb(n), key => 'k' || n % 3) FROM generate_series(1, 100) n),
	dead => q(
		SELECT outbox_enqueue(topic, '1') FROM unnest('{dead,later,later}'::text[]) topic;
		SELECT outbox_enqueue('t', '1', deliver_at => now() + interval '1 h');
		SELECT outbox_cancel(outbox_enqueue('t', '1', deliver_at => now() + interval '1 h'))),
	stock => q(
		SELECT stock_receive('hat' || n, 10), stock_reserve('hat' || n, 3, 'open' || n, ttl => '1 h') FROM generate_series(1, 50) n;
		SELECT stock_receive('cap', 10), stock_reserve('cap', 8, 'open', ttl => '1 h'), stock_reserve('cap', 5, 'waits', wait => true);
		SELECT stock_reserve('hat1', 1, 'closed'), stock_cancel('closed');
		SELECT stock_reserve('hat2', 1, 'confirmed'), stock_confirm('confirmed');
		SELECT stock_adjust('hat3', -1, 'broken'), stock_backorder('hat4', 5);
		SELECT stock_compact(1000);
		SELECT idempotency_internal.idempotency_ring_switch('idempotency_internal.stock_ring')),
	keys => q(
		SELECT idem_claim('k' || n) FROM generate_series(1, 100) n;
		SELECT idem_claim('long', ttl => '1 y'), idem_claim('leased', lease => '1 h');
		SELECT idem_claim('answered', lease => '1 h');
		SELECT idem_complete('answered', (SELECT token FROM idem_key WHERE key = 'answered'), '{"a": 1}');
		SELECT idem_fence('moved');
		SELECT idempotency_internal.idem_switch()),
	audit => q(
		SELECT outbox_subscribe('reader' || n, NULL) FROM generate_series(1, 20) n;
		SELECT outbox_alter('reader' || n, topics => '{none}') FROM generate_series(1, 20) n;
		SELECT outbox_topic('known', description => 'x'), outbox_pause('reader1'), outbox_resume('reader1')));

for my $db (sort keys %states)
{
	sql("CREATE DATABASE $db");
	sql('CREATE EXTENSION idempotency', $db);
}
subscribe($node, $receiver, '/ok/all', db => 'delivered', keep_deliveries => "'30 days'");
subscribe($node, $receiver, '/fail/dead', db => 'dead', topics => "'{dead}'", retry_schedule => "'{0 s}'");
subscribe($node, $receiver, '/fail/later', db => 'dead', topics => "'{later}'", retry_schedule => "'{0 s,10 h}'");
sql($states{$_}, $_) for sort keys %states;
$receiver->wait_for('all', events => 100);
$node->poll_query_until('dead', 'SELECT sum(dead) = 1 AND sum(waiting) = 2 FROM outbox_subscriptions') or die 'the endpoints do not fail';
is(sql('SELECT count(*) FROM idempotency_audit', 'audit') > 20 ? 'rows' : 'none', 'rows', 'the audit has rows');
for my $db (sort keys %states)
{
	wait_for_workers($node, $db);
	sql('VACUUM (ANALYZE)', $db);
}

# Waits until nothing was used for some seconds, or the time is over; returns
# for how long, and what was used then.
sub watch
{
	my ($quiet_s, $max_s, $ends) = @_;
	my ($start, $since, $from) = (time(), time(), sql(USED));
	my $now = $from;

	while (time() - $since < $quiet_s && time() - $start < $max_s)
	{
		sleep(1);
		$now = sql(USED);
		next if $now eq $from;
		last if $ends;
		($since, $from) = (time(), $now);
	}
	return (time() - $since, $from, $now);
}

# The WAL between two positions.
sub written
{
	my ($from, $to) = @_;
	$node->poll_query_until('postgres', "SELECT pg_current_wal_flush_lsn() >= '$to'") or die 'the WAL is not flushed';
	IPC::Run::run([ 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-s', $from, '-e', $to ], '>', \my $records, '2>', \my $errors);
	return $records;
}

my $sweeps = q(SELECT sum(starts) || ' ' || bool_and(last_success_at > now() - interval '10 s') || ' ' || sum(errors) FROM idempotency_internal.idempotency_workers() WHERE kind = 'sweeper');
my ($quiet) = watch(QUIET_S, QUIET_MAX_S, 0);
cmp_ok($quiet, '>=', QUIET_S, 'what was done before comes to an end');
# The server itself notes its state once more, after the last change.
sql('CHECKPOINT');
watch(NOTED_S, QUIET_MAX_S, 0);
my ($idle, $from, $to) = watch(IDLE_S, IDLE_S, 1);
my ($xid, $lsn, $next_xid, $next_lsn) = map { split(/\|/) } $from, $to;
is($next_xid - $xid, 0, sprintf('in %.0f s: no transaction id', $idle));
is($next_lsn, $lsn, 'and no WAL') or diag(written($lsn, $next_lsn));
cmp_ok($idle, '>=', IDLE_S, 'for so long');
is(sql($sweeps, $_), '1 true 0', "the sweeper of $_ has worked") for sort keys %states;

done_testing();
