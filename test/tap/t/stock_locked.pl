# Orders lapse that another transaction has locked, with lines of more items than
# a step of the sweeper searches: when it has looked at all items, it rests.  If
# this fails, the sweeper takes a whole CPU until that transaction ends.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;

use constant {
	ORDERS => 2,
	LINES => 9999,    # a step searches 10,000 items
	STEPS_MAX => 50,
};

my $node = start_server('stock_locked', conf => "idempotency.databases = none\nidempotency.stock_items = 40000\n");
my $sweeper = session($node);
my $other = session($node);

sql("INSERT INTO stock_item (sku, received) SELECT n::text, 1 FROM generate_series(1, @{[ORDERS * LINES]}) n");
for my $order (1 .. ORDERS)
{
	is( sql("SELECT outcome FROM stock_reserve_many((SELECT jsonb_object_agg(n, 1)
			FROM generate_series(@{[($order - 1) * LINES + 1]}, @{[$order * LINES]}) n), 'order $order', ttl => '1 us')"),
		'reserved', 'an order of ' . LINES . ' lines');
}
$other->query_safe('BEGIN; SELECT FROM stock_hold WHERE line = 0 FOR UPDATE');

my ($steps, $expired) = (0, -1);
$expired = $sweeper->query_safe('SELECT stock_expire(1000)') while $expired == -1 && $steps++ < STEPS_MAX;
is($expired, 0, "the sweeper rests after $steps steps");
note("$steps steps");

# It continues when they are free, and forgets none.
finish($other, 'ROLLBACK');
$steps = 0;
$sweeper->query_safe('SELECT stock_expire(1000)') while sql('SELECT count(*) FROM stock_hold') > 0 && $steps++ < STEPS_MAX;
is(sql('SELECT count(*) FROM stock_hold'), 0, 'then all expire');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), 0, 'the counters are right');

done_testing();
