# While nothing is due, the workers of a database take no transaction id and
# write no WAL, whatever there is that will be due later.  If this fails, each
# idle database uses up 86,400 transaction ids a day, and keeps archives and
# standbys busy.
#
# The sweeper wakes every 10 ms, so that seconds show what ten minutes would.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

# So many take longer than any timer of a relay.
use constant SWEEPS => 400;

my $receiver = Receiver->start;
my $node = new_server('idle', allows_streaming => 1,
	conf => "idempotency.sweep_interval = '10ms'\nautovacuum = off\nmax_prepared_transactions = 2\nidempotency.stock_events = on\ntrack_functions = all");
$node->start;

# The id of the next transaction, and the end of the WAL.
use constant USED => 'SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn()';

# Returns what is used while the sweeper takes all its steps so many times.
sub used
{
	my ($sweeps) = @_;
	my $before = [ split(/\|/, sql(USED)) ];

	sql(qq(
		DO \$\$
		DECLARE
			seen    timestamptz := clock_timestamp();
			success timestamptz;
		BEGIN
			FOR sweep IN 1..$sweeps LOOP
				LOOP
					SELECT last_success_at INTO success FROM idempotency_internal.idempotency_workers() WHERE kind = 'sweeper';
					EXIT WHEN success > seen;
					ASSERT clock_timestamp() < seen + interval '1 min', 'the sweeper does not work';
					PERFORM pg_sleep(0.002);
				END LOOP;
				seen := success;
			END LOOP;
		END \$\$));
	return ($before, [ split(/\|/, sql(USED)) ]);
}

# The WAL between two positions, without what the server writes by itself after
# it was used: a snapshot for standbys.
sub written
{
	my ($from, $to) = @_;
	return '' if $from eq $to;
	$node->poll_query_until('postgres', "SELECT pg_current_wal_flush_lsn() >= '$to'") or die 'the WAL is not flushed';
	IPC::Run::run([ 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-s', $from, '-e', $to ], '>', \my $records, '2>', \my $errors);
	return join("\n", grep { !/RUNNING_XACTS|CHECKPOINT/ } split(/\n/, $records));
}

sub is_idle
{
	my ($what, $sweeps) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $found;

	# What was done before may have to be finished.
	for (1 .. 10)
	{
		my ($before, $after) = used($sweeps // 40);
		$found = $after->[0] - $before->[0] . ' ' . written($before->[1], $after->[1]);
		last if $found eq '0 ';
	}
	return is($found, '0 ', $what);
}

sql('CREATE DATABASE other');
sql('CREATE EXTENSION idempotency');
worker_pid($node, 'sweeper');
is_idle('a new database');

sql(q(
	SELECT outbox_subscribe('reader', NULL), outbox_subscribe('paused', 'http://127.0.0.1:9/') IS NULL;
	SELECT outbox_pause('paused');
	SELECT outbox_enqueue('t', to_jsonb(n), key => 'k' || n % 3) FROM generate_series(1, 100) n;
	SELECT idem_claim('done'), idem_claim('expired', ttl => '1 ms');
	SELECT idem_claim('leased', lease => '1 h');
	SELECT stock_receive('hat', 10), stock_reserve('hat', 8, 'open', ttl => '1 h'), stock_reserve('hat', 5, 'waits', wait => true);
	SELECT stock_reserve('hat', 1, 'closed'), stock_cancel('closed')));
subscribe($node, $receiver, '/ok/all');
subscribe($node, $receiver, '/fail/dead', topics => "'{dead}'", retry_schedule => "'{0 s}'");
subscribe($node, $receiver, '/fail/later', topics => "'{later}'", retry_schedule => "'{0 s,10 h}'");
subscribe($node, $receiver, '/ok/kept', keep_deliveries => "'30 days'");
sql(q(SELECT outbox_enqueue(topic, '1', key => 'k') FROM unnest('{dead,later,later}'::text[]) topic;
	SELECT outbox_enqueue('t', '1', deliver_at => now() + interval '1 h');
	SELECT outbox_cancel(outbox_enqueue('t', '1', deliver_at => now() + interval '1 h'))));
$receiver->wait_for('all', events => 3);
$node->poll_query_until('postgres', 'SELECT sum(dead) = 1 AND sum(waiting) > 1 FROM outbox_subscriptions') or die 'the endpoints do not fail';
is_idle('keys, events, subscriptions, reservations, a queue, dead letters and retries', SWEEPS);

sql('SELECT stock_compact(1000), idempotency_internal.idem_switch(), idempotency_internal.outbox_switch()');
sql(q(SELECT idempotency_internal.idempotency_ring_switch(ring::regclass) FROM (VALUES ('outbox_history_ring'), ('stock_ring')) r(ring)));
is_idle('old segments that are needed');
sql(q(UPDATE idempotency_internal.stock_ring SET state = 'retired', quiet_xid = '1000000000' WHERE state = 'old'));
is_idle('a retired table that a snapshot may see');

sql(q(BEGIN; SELECT outbox_enqueue('t', '2'), stock_receive('hat', 1); PREPARE TRANSACTION 'p'));
is_idle('a prepared transaction');
my $session = session($node);
$session->query_safe(q(BEGIN; SELECT outbox_enqueue('t', '3'), stock_receive('cap', 1)));
is_idle('an open transaction');
finish($session, 'ROLLBACK');
sql(q(UPDATE idempotency_internal.outbox_home SET database = 1));
is_idle('a copy that is held');

# All steps of a sweep share one look for a restore.
is(sql(q(SELECT sum(calls) FILTER (WHERE funcname = 'idempotency_restoring') < 2 * sum(calls) FILTER (WHERE funcname = 'stock_forget')
	FROM pg_stat_user_functions WHERE schemaname = 'idempotency_internal')), 't', 'few looks for a restore');

done_testing();
