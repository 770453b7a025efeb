# Endpoints that hang leave room for requests to the others, however many hang,
# however long, and however many requests they were sent before.  If this fails,
# the broken servers of some customers delay the events of all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(usleep);

use constant { ROUNDS => 3, EVENTS => 200, PAUSE_MS => 20, ARRIVED_S => 20, DELAY_MS_MAX => 1000 };

# Together, they may have more requests in flight than a relay can have.
use constant { HANGING => 300, WORKING => 60, MAX_IN_FLIGHT => 32 };

my $receiver = Receiver->start;
my $node = start_server('fair_shares');

# Are events that come for several seconds delivered to an endpoint that works?
# A busy machine may delay everything for a moment, so this is tried again; an
# endpoint that has to wait for others waits each time.
sub is_served
{
	my ($name, $while) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $delay;

	for (1 .. ROUNDS)
	{
		my $before = $receiver->requests($name);

		enqueue_steadily($node, 'all', EVENTS, PAUSE_MS);
		last unless $receiver->wait_for($name, events => $before + EVENTS, ARRIVED_S);
		my @delays = $receiver->delays_ms($name);
		@delays = sort { $a <=> $b } @delays[ -EVENTS .. -1 ];
		$delay = $delays[ 0.99 * EVENTS - 1 ];
		note("p50 $delays[ EVENTS / 2 - 1 ] ms, p99 $delay ms");
		last if $delay < DELAY_MS_MAX;
	}
	cmp_ok($delay // 'inf', '<', DELAY_MS_MAX, "$while: every event arrives, and soon");
	return;
}

# Makes subscriptions to one URL, which get the same events.
sub subscribe_many
{
	my ($prefix, $count, $path) = @_;
	my $url = $receiver->url($path);

	sql("SELECT count(outbox_subscribe('$prefix' || n, '$url', topics => '{all}', timeout => '5 min',"
		  . " max_in_flight => @{[ MAX_IN_FLIGHT ]})) FROM generate_series(1, $count) n");
	return;
}

sub in_flight
{
	my ($name) = @_;
	return sql("SELECT in_flight FROM outbox_subscriptions WHERE name = '$name'");
}

# Ends all subscriptions, and the requests in flight.
sub clear
{
	sql('SELECT count(outbox_unsubscribe(name)) FROM outbox_subscriptions');
	$node->restart;
	wait_for_workers($node);
	return;
}

# --- many endpoints, which never answer

subscribe_many('hangs', HANGING, '/hang/crowd');
subscribe($node, $receiver, '/ok/among', topics => "'{all}'");
is_served('among', HANGING . ' hang');
clear();

# --- one endpoint with many partitions

subscribe($node, $receiver, '/hang/wide', topics => "'{all}'", partitions => 64, timeout => "'30 min'",
	max_in_flight => 256);
subscribe($node, $receiver, '/ok/beside', topics => "'{all}'");
is_served('beside', 'one of 64 partitions hangs');
cmp_ok(scalar($receiver->requests('wide')), '<=', 8, 'its partitions have a few requests in flight, all together');
cmp_ok(in_flight('wide'), '<=', 8, 'as outbox_subscriptions shows');
clear();

# --- endpoints that have worked

$receiver->switch('works', 'ok');
subscribe_many('works', WORKING, '/switch/works');
subscribe($node, $receiver, '/ok/after', topics => "'{all}'");
sql("SELECT count(outbox_enqueue('all', '{}')) FROM generate_series(1, @{[ 2 * MAX_IN_FLIGHT ]})");
wait_until($node, "SELECT bool_and(delivered = @{[ 2 * MAX_IN_FLIGHT ]}) FROM outbox_subscriptions", 'all endpoints work');
$receiver->switch('works', 'hang');
is_served('after', WORKING . ' have worked and hang');
clear();

# --- one that has worked, and does not answer in time

$receiver->switch('shrinks', 'ok');
subscribe($node, $receiver, '/switch/shrinks', topics => "'{all}'", timeout => "'1 s'",
	max_in_flight => MAX_IN_FLIGHT, retry_schedule => "array_prepend('0 s', array_fill('1 s'::interval, '{60}'))");
sql("SELECT count(outbox_enqueue('all', '{}')) FROM generate_series(1, @{[ 2 * MAX_IN_FLIGHT ]})");
wait_until($node, "SELECT delivered = @{[ 2 * MAX_IN_FLIGHT ]} FROM outbox_subscriptions", 'it works');
$receiver->switch('shrinks', 'hang');

# Too few for it to count as failing.
sql("SELECT count(outbox_enqueue('all', '{}')) FROM generate_series(1, 19)");
$receiver->wait_for('shrinks', requests => 2 * MAX_IN_FLIGHT + 19 + 2);
my $most = 0;
for (1 .. 10)
{
	my $now = in_flight('shrinks');
	$most = $now if $now > $most;
	usleep(100_000);
}
cmp_ok($most, '<=', 2, 'it has fewer and fewer requests in flight');
is(sql("SELECT state FROM outbox_subscriptions"), 'active', 'although it does not count as failing');

done_testing();
