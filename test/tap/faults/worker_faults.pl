# Workers that fail at any point - an allocation, a check for interrupts, a
# heavyweight lock, the end of their process - lose nothing, and go on: the
# relay in a pass, in a request and as it records the result, the sweeper in each
# step, the launcher and the discovery of databases.  If this fails, an error at
# the worst moment stops a worker for good, or an event, a reservation or a
# database is forgotten.
#
# It runs on the server of lib/asserts, as calls.pl does.  A worker fails at one
# in so many points, by chance; each round has another kind of error.  FAULTS
# selects kinds; SEED repeats the chances, if not the order of processes.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

# The chances are those with which most steps of a worker succeed, and then
# those with which few do.
use constant { FAULTS_MIN => 20 };
my %chances = (
	allocation => [ 3000, 1000, 300 ],
	interrupt => [ 300, 100, 30 ],
	lock => [ 300, 100, 30 ],
	terminate => [ 3000, 1000, 300 ]);
my %errors = (
	allocation => 'out of memory, by a fault',
	interrupt => 'canceling statement by a fault',
	lock => 'lock timeout, by a fault',
	terminate => 'terminating (?:background worker|connection)|idempotency \w+ of database "\w+" has ended');

my $seed = $ENV{SEED} // int(rand(1 << 30));
my @kinds = split(' ', $ENV{FAULTS} // 'allocation interrupt lock terminate');
my $receiver = Receiver->start;
my $node = new_server('worker_faults', conf => <<EOF);
shared_preload_libraries = 'idempotency, faults'
idempotency.sweep_interval = 50ms
idempotency.stock_compact_after = 20
log_min_messages = warning
log_statement = none
log_min_error_statement = panic
max_prepared_transactions = 10
faults.strict_locks = on
faults.worker_again = 2
faults.seed = $seed
EOF
$node->start;
sql('CREATE EXTENSION idempotency');
sql(q(SELECT outbox_subscribe('reader', NULL, topics => '{none}')));
subscribe($node, $receiver, '/ok/all', topics => "'{t}'", filter => q('$.n > 0'), retry_schedule => "'{0 s,0 s,1 s}'", keep_deliveries => "'1 d'");
my $number = 0;

# What each worker has to do, in one round.
sub make_work
{
	my ($round) = @_;

	sql(qq(SELECT outbox_enqueue('t', jsonb_build_object('n', n), key => 'k' || n % 5) FROM generate_series($number + 1, $number + 20) n;
		SELECT idem_claim('k$round-' || n, ttl => '1 ms') FROM generate_series(1, 50) n;
		SELECT stock_receive('s$round-' || n, 1) FROM generate_series(1, 20) n;
		SELECT stock_reserve('s$round-' || n, 1, 'first$round-' || n, ttl => '10 ms') FROM generate_series(1, 20) n;
		SELECT stock_reserve('s$round-' || n, 1, 'waits$round-' || n, wait => true) FROM generate_series(1, 20) n;
		SELECT stock_receive('moved', 1) FROM generate_series(1, 60) n;
		BEGIN; SELECT stock_receive('prepared', 1), outbox_enqueue('t', '{"n": @{[$number + 21]}}'); PREPARE TRANSACTION 'p$round'));
	$number += 21;
	sql("COMMIT PREPARED 'p$round'");
	sql("CREATE DATABASE d$round");
	sql('CREATE EXTENSION idempotency', "d$round");
	return;
}

# Is all of it done?  The queries say what is not.
my %undone = (
	'deliveries' => q(SELECT count(*) FROM outbox_subscriptions WHERE name = 'all' AND (lag_events > 0 OR waiting + parked + in_flight > 0)),
	'reservations that lapse' => q(SELECT count(*) FROM stock_hold WHERE expires_at < now() AND reservation ~ '^first'),
	'queues' => q(SELECT count(*) FROM stock_queue),
	'compaction' => q(SELECT greatest(count(*) - 50, 0) FROM stock_log WHERE sku = 'moved'));

sub is_done
{
	my ($round, $what) = @_;
	my $undone = join(' UNION ALL ', map { "SELECT '$_' AS what FROM ($undone{$_}) u (n) WHERE n > 0" } sort keys %undone);
	my $is_done = $node->poll_query_until('postgres', "SELECT count(*) = 0 FROM ($undone) x");

	ok($is_done, "$what: the work of $round is done") or diag(sql($undone), sql('SELECT * FROM idempotency_internal.idempotency_workers()'));
	ok($node->poll_query_until('postgres', "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = 'd$round' AND backend_type ~ 'idempotency (relay|sweeper)'"),
		"$what: its new database has workers");
	return;
}

my $round = 0;
for my $kind (@kinds)
{
	my $start = -s $node->logfile;

	for my $chance (@{ $chances{$kind} })
	{
		$round++;
		sql("ALTER SYSTEM SET faults.worker_$kind = $chance");
		sql('SELECT pg_reload_conf()');
		make_work($round);
		# Until some of them have failed, or all work is done.
		my $failed = 0;
		for (1 .. 100)
		{
			$failed = () = slurp_file($node->logfile, $start) =~ /$errors{$kind}/g;
			last if $failed >= FAULTS_MIN;
			sql('SELECT pg_sleep(0.1), idempotency_internal.outbox_wake()');
		}
		sql("ALTER SYSTEM RESET faults.worker_$kind");
		sql('SELECT pg_reload_conf()');
		is_done($round, "$kind, one in $chance, $failed errors");
		sql("DROP DATABASE d$round WITH (FORCE)");
	}
	my $log = slurp_file($node->logfile, $start);
	like($log, qr/$errors{$kind}/, "$kind: workers have failed");
	unlike($log, qr/is held|TRAP:|terminated by signal|PANIC/, "$kind: nothing crashed");
}
$receiver->wait_for('all', events => $number);
is($receiver->distinct_numbers('all'), join(' ', 1 .. $number), 'every event has been delivered');
is(sql('SELECT count(*) FROM outbox_dead'), 0, 'and none is a dead letter');
is(sql(q(SELECT count(*) FROM stock_verify() WHERE NOT ok)), 0, 'stock is right');
is(sql(q(SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^idempotency' AND state <> 'idle' AND xact_start < now() - interval '30 s')), 0,
	'no worker is in a transaction');
is(sql(qq{SELECT string_agg(DISTINCT s.state, ' ') FROM generate_series(1, $round) r, generate_series(1, 20) n, LATERAL stock_reservation_status('waits' || r || '-' || n) s}),
	'open', 'whoever has waited was served');

done_testing();
