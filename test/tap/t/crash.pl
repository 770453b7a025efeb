# Workers that are killed and servers that crash lose no event, and repeat
# events only under the same ids.  If this fails, a crash loses events, or
# workers do not come back.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('crash', conf => <<'EOF');
idempotency.sweep_interval = 50ms
idempotency.outbox_retention = 0
EOF

# Every event was accepted, and none under two ids.
sub check_all
{
	my ($name, $count, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my (%ids, %accepted);

	$receiver->wait_for($name, events => $count);
	$node->poll_query_until('postgres', 'SELECT bool_and(position = last_value AND waiting = 0)'
		  . " FROM outbox_subscriptions, outbox_position_seq WHERE name = '$name'");
	for my $request ($receiver->requests($name, qw(id status data)))
	{
		$ids{ $request->{data}{n} }{ $request->{id} } = 1;
		$accepted{ $request->{data}{n} } = 1 if $request->{status} == 200;
	}
	is(scalar(keys %accepted), $count, "$what: nothing is lost");
	is(scalar(grep { keys %$_ > 1 } values %ids), 0, "$what: duplicates have the same webhook-id");
	return;
}

sub enqueue_batch
{
	my ($topic, $count) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n)))"
		  . " FROM generate_series(1, $count) n");
	return;
}

sub count_workers
{
	my ($db) = @_;
	return sql(qq(
		SELECT string_agg(kind || ' ' || count, ', ' ORDER BY kind) FROM (
			SELECT replace(backend_type, 'idempotency ', '') AS kind, count(*) FROM pg_stat_activity
			WHERE backend_type LIKE 'idempotency %' AND datname = '$db' GROUP BY 1) k));
}

# --- kill -9 of the relay: the postmaster restarts all processes

subscribe($node, $receiver, '/hold/killed', topics => "'{killed}'", max_in_flight => 8);
enqueue_batch('killed', 40);
$receiver->wait_for('killed', requests => 8);
kill('KILL', worker_pid($node, 'relay'));
$receiver->wait_for('killed', requests => 16);
$receiver->release('killed');
check_all('killed', 40, 'kill -9 of the relay with requests out');
cmp_ok(scalar($receiver->requests('killed')), '>', 40, 'what was out is sent again');

# --- the same, after one of two concurrent retries was delivered

subscribe($node, $receiver, '/switch/counted', topics => "'{counted}'", retry_schedule => "'{0 s,1 h}'");
$receiver->switch('counted', 'fail');
sql(q(SELECT outbox_enqueue('counted', '{"n": 1}'), outbox_enqueue('counted', '{"n": 2, "hold": true}')));
wait_until($node, q(SELECT waiting = 2 FROM outbox_subscriptions WHERE name = 'counted'), 'two events fail');
$receiver->switch('counted', 'told');
sql('UPDATE outbox_delivery SET due_at = now(); SELECT outbox_wake()');
$receiver->wait_for('counted', requests => 4);
wait_until($node, q(SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'counted'), 'one of them is delivered');
enqueue_batch('none', 1);	# makes earlier records durable
kill('KILL', worker_pid($node, 'relay'));
$receiver->wait_for('counted', requests => 5);
$receiver->release('counted');
check_all('counted', 2, 'kill -9 of the relay with a retry out');
is(sql(q(SELECT delivered FROM outbox_subscriptions WHERE name = 'counted')), '2',
	'and each is counted');

# --- pg_terminate_backend

subscribe($node, $receiver, '/hold/ended', topics => "'{ended}'", max_in_flight => 8);
enqueue_batch('ended', 40);
$receiver->wait_for('ended', requests => 8);
ok(terminate_worker($node, 'relay'), 'a terminated relay comes back');
$receiver->wait_for('ended', requests => 16);
$receiver->release('ended');
check_all('ended', 40, 'pg_terminate_backend of the relay with requests out');

ok(terminate_worker($node, 'sweeper'), 'a terminated sweeper comes back');
ok(terminate_worker($node, 'launcher'), 'a terminated launcher comes back');

# When the new launcher has started workers in one database, it knows them all.
sql('CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION idempotency');
wait_for_workers($node, 'other');
is(count_workers('postgres'), 'relay 1, sweeper 1',
	'the workers of the old launcher are not doubled');
subscribe($node, $receiver, '/ok/once', topics => "'{once}'");
wait_for_workers($node);
enqueue_batch('once', 100);
$receiver->wait_for('once', requests => 100);
wait_for_pass($node);
is(scalar($receiver->requests('once')), 100, 'each event is sent once');

sql(q(
	SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency %'));
wait_for_workers($node, 'other');
enqueue_batch('once', 100);
$receiver->wait_for('once', events => 200);
is(count_workers('postgres'), 'relay 1, sweeper 1',
	'pg_cancel_backend of all of them does no harm');

# --- the server

subscribe($node, $receiver, '/hold/immediate', topics => "'{immediate}'", max_in_flight => 8);
enqueue_batch('immediate', 40);
$receiver->wait_for('immediate', requests => 8);
$node->stop('immediate');
$receiver->release('immediate');
$node->start;
check_all('immediate', 40, 'immediate stop with undelivered events');

done_testing();
