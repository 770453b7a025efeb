# Several relays divide the partitions of subscriptions, also when relays die
# and their number changes.  If this fails, events of a key overtake each
# other, are sent by two relays at once, or are never sent.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant { TRIES => 10, SECOND => 0.9 };

my $receiver = Receiver->start;
my $node = start_server('relays', conf => 'idempotency.relays = 3');

sub wait_for_shares
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, relay_shares() . " = '$expected'", $what);
}

sub enqueue
{
	my ($topic, $from, $to) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('key', 'k' || k, 'n', n), key => 'k' || k))"
		  . " FROM generate_series($from, $to) n, generate_series(1, 40) k");
	return;
}

# --- they share the work

subscribe($node, $receiver, '/ok/calm', topics => "'{calm}'", partitions => 6);
wait_for_shares('3 6', 'three relays serve six partitions');
enqueue('calm', 1, 30);
$receiver->wait_for('calm', requests => 1200);
wait_until($node, "SELECT lag_events = 0 AND delivered = 1200 AND partitions = 6 FROM outbox_subscriptions"
	  . " WHERE name = 'calm'", 'all is delivered');
is(scalar($receiver->requests('calm')), 1200, 'each event is sent once');
is($receiver->overtakings('calm'), 0, 'each key is in order');
is(sql('SELECT count(*) FROM outbox_partition WHERE delivered > 0'), 6, 'every partition has its part of it');
sql(q(SELECT count(outbox_enqueue('calm', jsonb_build_object('key', n, 'n', 1))) FROM generate_series(1, 60) n));
$receiver->wait_for('calm', requests => 1260);
is(scalar($receiver->requests('calm')), 1260, 'likewise of events without a key');
sql("SELECT outbox_unsubscribe('calm')");

# --- one dies

subscribe($node, $receiver, '/ok/deaths', topics => "'{deaths}'", partitions => 6);
for my $round (0 .. 5)
{
	enqueue('deaths', 10 * $round + 1, 10 * $round + 10);
	sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency relay'"
		  . ' ORDER BY random() LIMIT 1');
	$receiver->wait_for('deaths', events => 400 * $round + 200);
}
$receiver->wait_for('deaths', events => 2400);
is($receiver->overtakings('deaths'), 0, 'each key is in order though relays die');
wait_for_shares('3 6', 'those that come back get their share');
sql("SELECT outbox_unsubscribe('deaths')");

# --- their number changes

# Changes the number of relays while requests of a new subscription are held.  A
# relay that has to leave partitions to others has a second for its requests in
# flight, so that is tried again if it took longer here.  Returns the name of the
# subscription, the shares and the number of requests meanwhile.
sub change_relays
{
	my ($from, $to, $shares, $partitions, $events, $in_flight) = @_;
	my $name = "held$from";

	for my $try (1 .. TRIES)
	{
		alter_system('idempotency.relays', $from);
		$name .= 'x';
		subscribe($node, $receiver, "/hold/$name", topics => "'{$name}'", partitions => $partitions, timeout => "'30 min'");
		wait_for_shares($shares, "the number of relays is $from");
		sql("SELECT count(outbox_enqueue('$name', jsonb_build_object('key', n, 'n', 1))) FROM generate_series(1, $events) n");
		$receiver->wait_for($name, requests => $in_flight);

		my $began = time();
		alter_system('idempotency.relays', $to);
		$node->poll_query_until('postgres',
			"SELECT count(*) = 3 FROM pg_stat_activity WHERE backend_type = 'idempotency relay'");
		my @found = (sql(relay_shares()), scalar($receiver->requests($name)));
		$receiver->release($name);
		return ($name, @found) if time() < $began + SECOND;

		wait_until($node, "SELECT delivered = $events FROM outbox_subscriptions WHERE name = '$name'", 'that took too long');
		sql("SELECT outbox_unsubscribe('$name')");
	}
	die 'the machine is too slow';
}

my ($name, $shares, $sent) = change_relays(1, 3, '1 4', 4, 20, 8);
is($shares, '1 4', 'a relay keeps what it has requests out for');
is($sent, 8, 'what is out is not sent by another');
wait_for_shares('3 4', 'afterwards the work is shared out anew');
sql("SELECT count(outbox_enqueue('$name', jsonb_build_object('key', n, 'n', 1))) FROM generate_series(21, 40) n");
$receiver->wait_for($name, requests => 40);
is(scalar($receiver->requests($name)), 40, 'each event was sent once');
sql("SELECT outbox_unsubscribe('$name')");

# Each partition has requests in flight: others would change hands at once.
($name, $shares, $sent) = change_relays(3, 2, '3 3', 3, 18, 18);
is($shares, '3 3', 'a relay that is one too many finishes first');
wait_for_shares('2 3', 'a relay less: its share goes to the others');
wait_until($node, "SELECT delivered = 18 FROM outbox_subscriptions WHERE name = '$name'", 'all is delivered');
is(scalar($receiver->requests($name)), 18, 'and sent once');
is(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotency relay'"), '2', 'and it ends');

# --- an endpoint that hangs does not keep its bucket from another relay

alter_system('idempotency.relays', 1);
subscribe($node, $receiver, '/hang/hangs', topics => "'{both}'", partitions => 8, timeout => "'30 min'");
subscribe($node, $receiver, '/ok/works', topics => "'{both}'", partitions => 64);
wait_for_shares('1 75', 'one relay serves all');
enqueue_numbers($node, 'both', 1 .. 200);
$receiver->wait_for('works', events => 200);
$receiver->wait_for('hangs', requests => 8);
alter_system('idempotency.relays', 2);
wait_for_shares('2 75', 'another one starts');
enqueue_numbers($node, 'both', 201 .. 400);
ok($receiver->wait_for('works', events => 400, 20), 'all partitions are served');
$receiver->wait_for('hangs', requests => 9);
is(sql("SELECT coalesce(max(attempts), 0) FROM outbox_deliveries WHERE subscription = 'hangs'"), '0',
	'attempts that were ended do not count');

is(error_code($node, 'postgres', 'ALTER SYSTEM SET idempotency.relays = 9'), '22023', 'there is a limit');

done_testing();
