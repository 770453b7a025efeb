# An endpoint that answers 429 or 503 with Retry-After gets no request at all
# before that time, whether it counts as failing or not, unless an operator says
# that it works again.  If it fails as a whole, that holds for any answer.  If
# this fails, an endpoint that is overloaded is not left alone, and the service
# behind it does not recover.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

# Much longer than the pause before the first probe, which is a second.
use constant { ASKED_S => 6, LONG_S => 200, SOON_MS => 5000 };

# Time stamps of the receiver are in whole milliseconds.
use constant ASKED_MS => 1000 * ASKED_S - 5;

my $receiver = Receiver->start;
my $node = start_server('retry_after');

# When each request of a name arrived, in milliseconds.
sub arrivals
{
	my ($name) = @_;
	return map { $_->{at} } $receiver->requests($name, 'at');
}

# Enqueues an event for each payload, in one transaction, each with a key.
my $keys = 0;

sub enqueue
{
	my ($topic, @payloads) = @_;
	sql('BEGIN;' . join('', map { "SELECT outbox_enqueue('$topic', '$_', key => 'k" . ++$keys . "');" } @payloads) . 'COMMIT');
	return;
}

# Subscribes to /told/NAME and makes it answer the first event with a status and
# Retry-After, and then enqueues others.
sub ask_to_wait
{
	my ($name, $status, $after) = @_;

	subscribe($node, $receiver, "/told/$name", topics => "'{$name}'", partitions => 4, retry_schedule => "'{0 s,0 s,1 h}'");
	enqueue($name, qq({"n": 0, "fail": 1, "status": $status, "after": $after}));
	wait_until($node, "SELECT waiting = 1 FROM outbox_subscriptions WHERE name = '$name'", "$name: the first event waits");
	enqueue($name, map { qq({"n": $_}) } 1 .. 12);
	return;
}

# Makes the endpoint of a subscription fail; the last answer has Retry-After.
sub fail_as_a_whole
{
	my ($name, $after, $status) = @_;

	subscribe($node, $receiver, "/told/$name", topics => "'{$name}'", max_in_flight => 1, retry_schedule => "'{0 s,1 h}'");
	enqueue($name, (qq({"fail": 1})) x 19, qq({"fail": 1, "status": $status, "after": $after}), '{}');
	wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = '$name'", "$name: the endpoint fails");
	return;
}

sub is_delivered
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return wait_until($node, "SELECT waiting = 0 AND parked = 0 AND lag_events = 0 FROM outbox_subscriptions WHERE name = '$name'",
		"$name: in the end all events are delivered");
}

# The following waits overlap.

fail_as_a_whole('tripped', ASKED_S, 503);
fail_as_a_whole('missing', ASKED_S, 404);
ask_to_wait('limited', 429, ASKED_S);
ask_to_wait('busy', 503, ASKED_S);
ask_to_wait('broken', 500, LONG_S);

my %probes;
for my $kind (qw(busy missing))
{
	my $name = "probed-$kind";

	$receiver->switch($name, 'fail');
	subscribe($node, $receiver, "/switch/$name", topics => "'{$name}'", retry_schedule => "'{0 s,1 h}'");
	enqueue($name, ('{}') x 40);
	wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = '$name'", "$name: the endpoint fails");
	$receiver->switch($name, "$kind-" . ASKED_S);
	$probes{$name} = $receiver->requests($name);
}

# --- the endpoint fails with this answer

for my $name (qw(tripped missing))
{
	$receiver->wait_for($name, requests => 21);
	my @tripped = arrivals($name);
	cmp_ok($tripped[20] - $tripped[19], '>=', ASKED_MS, "$name: an endpoint that fails is not probed before the time that it asked for");
	is_delivered($name);
}

# --- it works otherwise: other keys, and other partitions, wait as well

for my $name (qw(limited busy))
{
	$receiver->wait_for($name, events => 13);
	my ($first, $second) = arrivals($name);
	cmp_ok($second - $first, '>=', ASKED_MS, "$name: nothing is sent before that time");
	is_delivered($name);
}

# --- an answer that is about one event

$receiver->wait_for('broken', events => 13);
my @broken = arrivals('broken');
cmp_ok($broken[-1] - $broken[0], '<', ASKED_MS, 'after another answer with Retry-After, other events do not wait');

# --- the answer to a probe

while (my ($name, $probe) = each %probes)
{
	$receiver->wait_for($name, requests => $probe + 2);
	my @probed = arrivals($name);
	cmp_ok($probed[ $probe + 1 ] - $probed[$probe], '>=', ASKED_MS,
		"$name: nor is the next probe sent before the time that a probe was told");
}

# --- an answer to an earlier request shows that the endpoint works

subscribe($node, $receiver, '/told/slow', topics => "'{slow}'", max_in_flight => 2, retry_schedule => "'{0 s,1 h}'");
enqueue('slow', '{"hold": true}', (qq({"fail": 1, "status": 404, "after": @{[ LONG_S ]}})) x 20);
$receiver->wait_for('slow', requests => 21);
wait_for_pass($node);
enqueue('slow', '{}');
my $works_at = time();
$receiver->release('slow');
$receiver->wait_for('slow', events => 22);
cmp_ok(1000 * (time() - $works_at), '<', SOON_MS, 'slow: then it does not wait for what the others were told');

# --- an operator knows better

fail_as_a_whole('down', LONG_S, 503);
ask_to_wait('waits', 429, LONG_S);
wait_for_pass($node);
is(scalar(arrivals('waits')), 1, 'an endpoint has asked to wait for long');
for my $name (qw(down waits))
{
	my $start = time();
	sql("SELECT outbox_retry('$name')");
	is_delivered($name);
	cmp_ok(1000 * (time() - $start), '<', SOON_MS, "$name: after outbox_retry, at once");
}
ask_to_wait('moved', 503, LONG_S);
wait_for_pass($node);
is(scalar(arrivals('moved')), 1, 'another one has asked, too');
sql("SELECT outbox_alter('moved', url => '" . $receiver->url('/ok/elsewhere') . "')");
$receiver->wait_for('elsewhere', events => 12);

done_testing();
