# A filter that takes long for many events delays its own subscription only.  If
# this fails, one subscription with such a filter, or several, delay all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

# A filter compares that many values with as many others, some 0.2 s of CPU.
use constant VALUES => 2500;
use constant EVENTS => 4;
use constant ALIKE => 12;

my $receiver = Receiver->start;
my $node = start_server('filter_costly');
my $filter = q('$.tags[*] == $.wanted[*] || $.n > 0');
my $payload = "jsonb_build_object('n', n, 'tags', (SELECT jsonb_agg('a' || i) FROM generate_series(1, @{[ VALUES ]}) i),"
  . " 'wanted', (SELECT jsonb_agg('b' || i) FROM generate_series(1, @{[ VALUES ]}) i))";

# How many requests to these endpoints came before the last one to another.
sub before
{
	my ($name, @others) = @_;
	my $last = ($receiver->requests($name))[-1]{at};

	return scalar grep { $_->{at} < $last } map { $receiver->requests($_) } @others;
}

sub wait_for_heads
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, 'SELECT bool_and(head IS NOT NULL) FROM outbox_partition p JOIN outbox_subscription s ON s.id = p.subscription'
		  . q( WHERE s.name <> 'costly'), 'all follow the head');
}

subscribe($node, $receiver, '/ok/cheap', topics => q('{cheap}'));
subscribe($node, $receiver, '/ok/costly', topics => q('{costly}'), filter => $filter);
wait_for_heads();
sql("SELECT count(outbox_enqueue('costly', $payload)), count(outbox_enqueue('cheap', '{}')) FROM generate_series(1, @{[ EVENTS ]}) n");
$receiver->wait_for('cheap', events => EVENTS);
$receiver->wait_for('costly', events => EVENTS);
cmp_ok(before('cheap', 'costly'), '<=', EVENTS / 2, 'events of another subscription do not wait for all of its evaluations');
is(join(' ', map { $_->{body} =~ /"n": ?(\d+)/ } $receiver->requests('costly')), join(' ', 1 .. EVENTS), 'its own events come, in order');
wait_until($node, "SELECT lag_events = 0 FROM outbox_subscriptions WHERE name = 'costly'", 'and none is left');

# --- several of them that want the same event

subscribe($node, $receiver, "/ok/alike$_", topics => q('{alike}'), filter => $filter) for 1 .. ALIKE;
subscribe($node, $receiver, '/ok/other', topics => q('{other}'));
wait_for_heads();
sql("SELECT count(outbox_enqueue('alike', $payload)), count(outbox_enqueue('other', '{}')) FROM generate_series(1, 1) n");
$receiver->wait_for('other', events => 1);
$receiver->wait_for("alike$_", events => 1) for 1 .. ALIKE;
cmp_ok(before('other', map { "alike$_" } 1 .. ALIKE), '<=', ALIKE / 2, 'nor do they wait for all of several subscriptions');

# --- a lagging subscription

subscribe($node, $receiver, '/ok/early', topics => q('{costly}'), filter => $filter, start => q('earliest'));
$receiver->wait_for('early', events => EVENTS);
is(sql(q(SELECT max(filter_errors) FROM outbox_subscriptions)), '0', 'no evaluation has reached its limit');

done_testing();
