# The relay and the sweeper at work: no statement of theirs costs more because
# there are more deferred deliveries, dead letters, keys, and events in the log.
# If this fails, a worker that has to catch up becomes slower and slower.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant {
	ROWS => 1000,
	EVENTS => 20,    # that are delivered, half of them after a failure
	NOISE => 300,    # buffers or rows of a statement
	STATEMENTS_MIN => 6,    # that a worker runs
	ATTEMPTS_MAX => 30,    # to see so many
};

my $receiver = Receiver->start;
my $node = start_server('workers', conf => <<EOF);
shared_preload_libraries = 'idempotency, auto_explain'
auto_explain.log_min_duration = 0
auto_explain.log_analyze = on
auto_explain.log_buffers = on
auto_explain.log_timing = off
auto_explain.log_nested_statements = on
log_statement = none
autovacuum = off
idempotency.sweep_interval = 100ms
EOF
my $delivered = 0;

# Events, each with a key of its own, or two with one key.
sub deliver
{
	my $from = $delivered + 1;
	my $to = $delivered += EVENTS;

	sql(<<EOF);
	DO \$\$
	BEGIN
		FOR i IN $from .. $to LOOP
			PERFORM outbox_enqueue('t', jsonb_build_object('n', i, 'fail', i % 2), 'new-' || i / 2);
			COMMIT;
		END LOOP;
	END
	\$\$
EOF
	$receiver->wait_for('busy', events => $delivered);
	wait_until($node, "SELECT delivered = $delivered FROM outbox_subscriptions WHERE name = 'busy'", "$delivered events are delivered");
	return wait_for_pass($node);
}

sub add_rows
{
	my ($from, $to) = @_;
	my $deferred = 'INSERT INTO outbox_delivery (subscription, position, partition, attempts, last_at, last_status, last_error,'
	  . ' created_at, topic, payload, state, blocks_key, due_at, key)'
	  . " SELECT 1, 1000000 + 3 * i + %d, 0, 3, now(), 500, 'HTTP 500', now(), 't', '{}', %s FROM generate_series($from, $to) i;\n";

	sql(sprintf($deferred, 0, "'waiting', true, now() + interval '1 h', 'k' || i")
		  . sprintf($deferred, 1, "CASE WHEN i = 1 THEN 'waiting' ELSE 'parked' END, true, CASE WHEN i = 1 THEN now() + interval '1 h' END, 'long'")
		  . sprintf($deferred, 2, "'dead', false, NULL, 'k' || i")
		  . <<EOF);
	INSERT INTO outbox_attempt (subscription, position, attempt, at, duration_ms)
	SELECT 1, 1000000 + i, 1, now(), 1 FROM generate_series(3 * $from, 3 * $to) i;
	SELECT count(outbox_cancel(outbox_enqueue('other', '{}', deliver_at => now() + interval '1 h'))) FROM generate_series($from, $to);
	SELECT count(outbox_enqueue('other', '{}')) FROM generate_series($from, $to);
	SELECT count(idem_claim('key-' || i)) FROM generate_series($from, $to) i;
EOF
	wait_until($node, 'SELECT NOT EXISTS (SELECT FROM outbox_cancelled WHERE NOT swept)', 'the sweeper has caught up');
	return wait_for_pass($node);
}

# Delivers events; returns the costliest plan of each query of a worker.
sub costliest
{
	my ($kind) = @_;
	my $pid = worker_pid($node, $kind);
	my $offset = -s $node->logfile;
	my %costliest;

	# A pass may find everything at once, and need few statements.
	for (1 .. ATTEMPTS_MAX)
	{
		deliver();
		for my $plan (plans_in(slurp_file($node->logfile, $offset), $pid))
		{
			my $most = $costliest{ $plan->{query} } //= { buffers => 0, rows => 0 };
			$most->{$_} = max($most->{$_}, $plan->{$_}) for keys %$most;
		}
		last if keys %costliest >= STATEMENTS_MIN;
	}
	return \%costliest;
}

# A test that no statement of a worker costs more than without the rows.
sub compare
{
	my ($what, $kind, $none) = @_;
	my $many = costliest($kind);
	my @grown = grep {
		my $old = $none->{$_} // { buffers => 0, rows => 0 };
		my $new = $many->{$_};
		grep { $new->{$_} > 2 * $old->{$_} + NOISE } keys %$old
	} keys %$many;

	ok(keys %$many >= STATEMENTS_MIN && !@grown, "$what: no statement of the $kind costs more");
	note("statements: " . keys %$many);
	diag("$_\n  rows $many->{$_}{rows}, buffers $many->{$_}{buffers}") for @grown;
	return;
}

subscribe($node, $receiver, '/told/busy', topics => "'{t}'", keep_deliveries => "'1 day'",
	retry_schedule => "'{0 s, 10 ms, 1 h}'");

# Plans are generic after some calls.
sql('VACUUM ANALYZE');
deliver() for 1 .. 2;
my %none = map { $_ => costliest($_) } qw(relay sweeper);
add_rows(1, ROWS);
compare('a few rows', $_, $none{$_}) for qw(relay sweeper);
add_rows(ROWS + 1, 10 * ROWS);
compare('plans from before', $_, $none{$_}) for qw(relay sweeper);

for my $state ('no statistics', 'statistics')
{
	sql('VACUUM ANALYZE') if $state eq 'statistics';
	terminate_worker($node, $_) for qw(relay sweeper);
	deliver();
	compare($state, $_, $none{$_}) for qw(relay sweeper);
}

# It has the statement that has subscribed, as auto_explain logs it.
$node->stop;
unlink($node->logfile) or die $!;

done_testing();
