# When a relay ends while an event has no answer, the next one reads the log again
# from this event on, also events that failed after it and wait as deferred
# deliveries.  The same after a replay.  If this fails, such an event is sent twice
# although it was accepted, once from the log and once as it is due.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver qw(events);
use Server;
use Test::More;

use constant FAILURES => 20;	# which open the breaker

my $receiver = Receiver->start;
my $node = start_server('read_again');

# Enqueues events with these data, each in its own transaction.
sub enqueue
{
	my ($topic, @data) = @_;
	sql(join(';', map { "SELECT outbox_enqueue('$topic', '$_', key => '$_'::jsonb ->> 'key')" } @data));
	return;
}

sub wait_for_deferred
{
	my ($name, $count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT count(*) = $count FROM outbox_delivery d JOIN outbox_subscription s"
		  . " ON s.id = d.subscription WHERE s.name = '$name' AND d.last_at IS NOT NULL", "$name: $count events have failed");
}

sub be_due
{
	my ($name) = @_;
	sql(qq(UPDATE outbox_delivery SET due_at = now() WHERE state = 'waiting'
		AND subscription = (SELECT id FROM outbox_subscription WHERE name = '$name'); SELECT outbox_wake()));
	return;
}

# While no relay runs, all retries become due, and the receiver recovers.
sub restart_relay
{
	my (@names) = @_;
	alter_system('idempotency.databases', "'none'");
	wait_for_no_workers($node);
	be_due($_) for @names;
	$receiver->release($_) for @names;
	sql('ALTER SYSTEM RESET idempotency.databases');
	sql('SELECT pg_reload_conf()');
	return;
}

# Waits until all is delivered, and returns the events of the requests after the
# first $before ones, sorted.
sub sent_after
{
	my ($name, $before, $delivered) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_until($node, "SELECT delivered >= $delivered AND waiting = 0 FROM outbox_subscriptions WHERE name = '$name'",
		"$name: $delivered events are delivered");
	wait_for_pass($node);
	my @requests = $receiver->requests($name);
	splice(@requests, 0, $before);
	return join(' ', sort { $a <=> $b } map { $_->{data}{n} } map { events($_) } @requests);
}

my %settings = (retry_schedule => "'{0 s,1 h}'", timeout => "'30 min'");

# --- single events, with and without a key

subscribe($node, $receiver, '/told/single', topics => q('{single}'), %settings);
enqueue('single', '{"n": 1, "hold": true, "key": "a"}', '{"n": 2, "fail": 1, "key": "b"}', '{"n": 3, "fail": 1}');
wait_for_deferred('single', 2);
enqueue('single', '{"n": 4, "key": "b"}');
wait_for_pass($node);

# --- events of a transaction that was passed while it was open

subscribe($node, $receiver, '/told/late', topics => q('{late}'), %settings);
my $late = session($node);
$late->query_safe(q(BEGIN; SELECT outbox_enqueue('late', '{"n": 1, "fail": 1}'), outbox_enqueue('late', '{"n": 2, "hold": true}')));
enqueue('late', '{"n": 3}');
$receiver->wait_for('late', requests => 1);
wait_until($node, q(SELECT bool_or(cardinality(r.stragglers) = 1) FROM outbox_reached r), 'a straggler is recorded');
$late->query_safe('COMMIT');
$late->quit;
wait_for_deferred('late', 1);

# --- several events in a request

subscribe($node, $receiver, '/each-100/batch', topics => q('{batch}'), format => "'cloudevents'", batch => 10, %settings);
enqueue('batch', '{"n": 1, "hold": true, "key": "a"}');
$receiver->wait_for('batch', requests => 1);
enqueue('batch', '{"n": 2, "fail": 1, "key": "b"}');
wait_for_deferred('batch', 1);
enqueue('batch', '{"n": 3, "key": "b"}', '{"n": 4, "key": "b"}');

# --- an endpoint that fails as a whole

subscribe($node, $receiver, '/told/failing', topics => q('{failing}'), %settings);
enqueue('failing', '{"n": 1, "hold": true}', map { qq({"n": $_, "fail": 1}) } 2 .. FAILURES + 1);
wait_until($node, q(SELECT failing_since IS NOT NULL FROM outbox_subscription WHERE name = 'failing'), 'the breaker is open');
my $attempts = scalar($receiver->requests('failing'));

restart_relay(qw(single late batch failing));
is(sent_after('single', 3, 4), '1 2 3 4', 'each event is sent once');
is(sent_after('late', 3, 3), '1 2', 'also those of a straggler');
is(sent_after('batch', 2, 4), '1 2 3 4', 'also in batches');
is(sent_after('failing', $attempts, FAILURES + 1), join(' ', 1 .. FAILURES + 1), 'also if the endpoint has failed as a whole');

# --- a replay

subscribe($node, $receiver, '/told/replay', topics => q('{replay}'), %settings);
enqueue('replay', '{"n": 1}', '{"n": 2, "fail": 1}', '{"n": 3}');
wait_for_deferred('replay', 1);
$receiver->wait_for('replay', requests => 3);
wait_for_pass($node);
sql(q(SELECT outbox_replay('replay', from_position => (SELECT min(position) FROM outbox_log WHERE topic = 'replay'))));
$receiver->wait_for('replay', requests => 5);
wait_for_pass($node);
is($receiver->sorted_numbers('replay'), '1 1 2 3 3', 'a replay leaves out what waits');
sql(q(SELECT outbox_retry('replay')));
is(sent_after('replay', 5, 5), '2', 'which is sent when it is due');

done_testing();
