# The commit of an enqueuing transaction wakes the relay.  If this fails, events
# still arrive, but only when the relay's timer of 5 s ends.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant EVENTS => 20;

my $receiver = Receiver->start;
my $node = start_server('wake');
my $session = session($node);

# Milliseconds from the end of a command to the arrival of the next event.
sub latency
{
	my ($name, $command) = @_;
	my $count = $receiver->requests($name);

	wait_for_pass($node);		# the relay is asleep
	my $start = time();
	$session->query_safe($command);
	$receiver->wait_for($name, events => $count + 1);
	return ($receiver->requests($name))[-1]{at} - 1000 * $start;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return $sorted[ @sorted / 2 ];
}

subscribe($node, $receiver, '/ok/idle');
my @latencies = map { latency('idle', "SELECT outbox_enqueue('t', '{}')") } 1 .. EVENTS;
note('ms to arrival: ' . join(' ', map { sprintf('%.0f', $_) } sort { $a <=> $b } @latencies));
cmp_ok(median(@latencies), '<', 500, 'a commit wakes a relay that sleeps');

@latencies = map { latency('idle', "INSERT INTO outbox_log (topic, payload) VALUES ('t', '{}')") } 1 .. 3;
cmp_ok(median(@latencies), '<', 500, 'so does the commit of a plain INSERT');

@latencies = map {
	my $slow = session($node);
	$slow->query_safe("BEGIN; SELECT outbox_enqueue('t', '{}')");
	latency('idle', "SELECT outbox_enqueue('t', '{}')");	# passes the other
	wait_for_pass($node);
	my $count = $receiver->requests('idle');
	my $start = time();
	$slow->query_safe('COMMIT');
	$receiver->wait_for('idle', events => $count + 1);
	$slow->quit;
	($receiver->requests('idle'))[-1]{at} - 1000 * $start
} 1 .. 3;
cmp_ok(median(@latencies), '<', 500, 'so does the commit of a straggler');

# A subscription with requests in flight leaves the relay armed for the others.
subscribe($node, $receiver, '/hold/busy', topics => "'{busy}'");
$session->query_safe("SELECT outbox_enqueue('busy', '{}')");
$receiver->wait_for('busy', requests => 1);
@latencies = map { latency('idle', "SELECT outbox_enqueue('t', '{}')") } 1 .. 5;
cmp_ok(median(@latencies), '<', 500,
	'so does a commit while requests of another subscription are out');

$session->quit;
done_testing();
