# A subscription that is altered while its endpoint hangs is served as it is now,
# with the events that are in flight, in order.  If this fails, an operator who
# moves a receiver away from a server that hangs has to wait for its timeout.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant { KEYS => 10, EVENTS_OF_KEY => 5, ARRIVED_MS => 3000, WAIT_S => 15 };

my $events = KEYS * EVENTS_OF_KEY;
my $receiver = Receiver->start;
my $node = start_server('altered_url');

# Enqueues the first events of each key, in one transaction.
sub enqueue
{
	my ($topic, $keys, $events_of_key) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('key', k, 'n', n), key => 'k' || k))"
		  . " FROM generate_series(1, $events_of_key) n, generate_series(1, $keys) k");
	return;
}

sub wait_for_state
{
	my ($name, $condition, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT $condition FROM outbox_subscriptions WHERE name = '$name'", "$name: $what");
}

# Makes a subscription whose endpoint hangs, and enqueues events for it.
sub hang
{
	my ($name, $path, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	subscribe($node, $receiver, $path, topics => "'{$name}'", timeout => "'30 min'", %params);
	enqueue($name, KEYS, EVENTS_OF_KEY);
	$receiver->wait_for($name, requests => 1);
	return wait_for_state($name, 'in_flight > 0', 'requests hang');
}

# Alters a subscription, all of whose events must then arrive at an endpoint.
sub alter
{
	my ($name, $change, $endpoint, $count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	sql("SELECT outbox_alter('$name', $change)");
	my $start = 1000 * time();
	$receiver->wait_for($endpoint, events => $count, WAIT_S);
	my @accepted = grep { $_->{status} == 200 } $receiver->requests($endpoint, qw(at status));
	is(scalar(@accepted), $count, "$name: every event is delivered once");
	cmp_ok((@accepted ? $accepted[-1]{at} : 'inf') - $start, '<', ARRIVED_MS, "$name: and soon");
	is($receiver->overtakings($endpoint), 0, "$name: each key is in order");
	wait_for_state($name, "delivered = $count AND in_flight = 0 AND waiting = 0 AND parked = 0 AND dead = 0", 'that is recorded');
	return;
}

sub move_to
{
	my ($endpoint) = @_;
	return "url => '" . $receiver->url("/ok/$endpoint") . "'";
}

# --- away from an endpoint that hangs

# To be ended is no attempt: with this schedule it would be the last one.
my %once = (retry_schedule => "'{0 s}'");

hang('old', '/hang/old', %once);
alter('old', move_to('new'), 'new', $events);

hang('wide', '/hang/wide', %once, partitions => 8);
alter('wide', move_to('elsewhere'), 'elsewhere', $events);

# --- with an event whose last retry is in flight

$receiver->switch('retried', 'fail');
subscribe($node, $receiver, '/switch/retried', topics => "'{retried}'", timeout => "'30 min'", retry_schedule => "'{0 s,3 s}'");
enqueue('retried', 1, EVENTS_OF_KEY);
wait_for_state('retried', 'waiting = 1', 'an event waits');
$receiver->switch('retried', 'hang');
$receiver->wait_for('retried', requests => 2);
alter('retried', move_to('again'), 'again', EVENTS_OF_KEY);

# --- a shorter timeout, when the endpoint works again

$receiver->switch('patient', 'hang');
hang('patient', '/switch/patient', retry_schedule => "'{0 s,100 ms,100 ms,100 ms}'");
$receiver->switch('patient', 'ok');
alter('patient', "timeout => '1 s'", 'patient', $events);

# --- with early attempts that were read but not sent

$receiver->switch('early', 'fail');
subscribe($node, $receiver, '/switch/early', topics => "'{early}'", timeout => "'30 min'", max_in_flight => 1,
	retry_schedule => "'{0 s,1 h}'");
enqueue('early', 20, 1);
wait_for_state('early', "state = 'failing'", 'an endpoint fails');
my $failed = $receiver->requests('early');
$receiver->switch('early', 'hold');
$receiver->wait_for('early', requests => $failed + 1);
$receiver->switch('early', 'hang');
$receiver->release('early');
$receiver->wait_for('early', requests => $failed + 2);
wait_for_pass($node);
sql("SELECT outbox_alter('early', " . move_to('late') . ')');
$receiver->wait_for('late', events => 19, WAIT_S);
wait_for_state('early', 'delivered = 20 AND waiting = 0', 'they are made at the new URL');

# --- what the old URL still answers is not about the new one

for my $status (503, 410)
{
	my ($name, $new) = ("late$status", "new$status");

	subscribe($node, $receiver, "/late-$status/$name", topics => "'{$name}'", retry_schedule => "'{0 s,1 h}'");
	enqueue($name, 4, 1);
	$receiver->wait_for($name, requests => 4);
	sql("SELECT outbox_alter('$name', " . move_to($new) . ')');
	sql("SELECT outbox_enqueue('$name', '{}')");
	$receiver->wait_for($new, events => 1, WAIT_S);
	$receiver->release($name);
	wait_for_state($name, 'in_flight = 0 AND waiting > 0', "the old URL has answered $status");
	sql("SELECT count(outbox_enqueue('$name', '{}')) FROM generate_series(1, 4)");
	$receiver->wait_for($new, events => 5, WAIT_S);
	is(sql("SELECT state FROM outbox_subscriptions WHERE name = '$name'"), 'active', 'and the subscription goes on');
}

# --- the requests of others

hang('other', '/hang/other');
wait_for_pass($node);
my $requests = $receiver->requests('other');
sql("SELECT outbox_alter('old', timeout => '10 s')");
enqueue('old', 1, 1);
$receiver->wait_for('new', requests => $events + 1, WAIT_S);
is(scalar($receiver->requests('other')), $requests, 'to alter a subscription ends no requests of another');

done_testing();
