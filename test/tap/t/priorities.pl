# Endpoints that want more requests in flight than a relay has places get shares
# in the proportion of their priorities, and one of the highest priority leaves
# a place to each of the others.  If this fails, a subscription that matters
# waits behind others, or a priority is a way to stop all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant { PLACES => 1024, POOL => 512, WIDE => 600, EVENTS => 20 };

my $receiver = Receiver->start;
my $node = start_server('priorities');
my %wide = (topics => "'{all}'", partitions => 4, max_in_flight => 256, timeout => "'2 min'");

sub of
{
	my ($name, $column) = @_;
	return "(SELECT $column FROM outbox_subscriptions WHERE name = '$name')";
}

sub enqueue
{
	my ($topic, $count) = @_;
	sql("SELECT count(outbox_enqueue('$topic', '{}')) FROM generate_series(1, $count)");
	return;
}

# --- two that are slow

subscribe($node, $receiver, '/lazy-1500/low', %wide);
subscribe($node, $receiver, '/lazy-1500/high', %wide, priority => 4);
is(sql('SELECT share FROM outbox_subscriptions WHERE share IS NOT NULL'), '', 'no request, no share');
enqueue('all', 6000);

# One part of six stays free.
my ($low, $high) = (of('low', 'in_flight'), of('high', 'in_flight'));
wait_until($node, "SELECT $low > @{[ POOL / 6 / 2 ]} AND ${high}::float / $low BETWEEN 3 AND 5.3",
	'a priority of 4 has four times as many requests in flight');
is( sql('SELECT bool_and(share * ' . PLACES . ' BETWEEN 1 AND ' . POOL . '), count(*) FROM outbox_subscriptions'),
	't|2', 'both know their share');
my ($low_share, $high_share) = (of('low', 'share'), of('high', 'share'));
is(sql("SELECT $high_share > 2 * $low_share"), 't', 'which follows the priority');

# --- a priority that is changed

sql("SELECT outbox_alter('high', priority => 1)");
wait_until($node, "SELECT $high < 1.5 * $low AND $low > @{[ POOL / 3 / 2 ]}", 'with the same priority they have as many');
sql('SELECT count(outbox_unsubscribe(name)) FROM outbox_subscriptions');
$node->restart;
wait_for_workers($node);

# --- one that hangs, of the highest priority

$receiver->switch('greedy', 'ok');
subscribe($node, $receiver, '/switch/greedy', %wide, priority => 100);
enqueue('all', WIDE);
wait_until($node, 'SELECT delivered = ' . WIDE . ' FROM outbox_subscriptions', 'it works');
$receiver->switch('greedy', 'hold');
enqueue('all', 2 * WIDE);
wait_until($node, 'SELECT in_flight > ' . 0.95 * POOL . ' FROM outbox_subscriptions', 'it hangs, with most of the pool');
is(sql('SELECT in_flight < ' . POOL . ' FROM outbox_subscriptions'), 't', 'but not all of it');
subscribe($node, $receiver, '/ok/modest', topics => "'{modest}'");
enqueue('modest', EVENTS);
wait_until($node, 'SELECT ' . of('modest', 'delivered') . ' = ' . EVENTS, 'another one is served all the same');
$receiver->release('greedy');

done_testing();
