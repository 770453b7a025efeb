# Stock: what is read of items, reservations and queues, and each step of the
# sweeper, costs as much as it returns or changes.  If this fails, a shop with
# many items or a long history waits for its own monitoring, or its sweeper
# stands still.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use PostgreSQL::Test::Utils;
use Test::More;

# Line "number" of "lines" of an order, one for each i; a hundredth as many items.
sub open_lines
{
	my ($number, $lines, $sku) = @_;

	return <<"SQL";
	INSERT INTO idempotency_internal.stock_hold
		(quantity, expires_at, line, reservation, sku, lines, id, at, actor)
	SELECT 1, now() + interval '30 days', $number, 'order-' || i, $sku, $lines, i, now(), 'app'
	FROM generate_series(:from, :to) i
SQL
}

# The rows that closed these lines.
sub closed_lines
{
	my ($table, $number, $lines, $sku) = @_;

	return <<"SQL";
	INSERT INTO idempotency_internal.$table
		(id, quantity, at, change, line, sku, reservation, actor, lines, reserved_id, reserved_at, reserved_by)
	OVERRIDING SYSTEM VALUE
	SELECT 1000000 + i, 1, now(), 'confirm', $number, $sku, 'order-' || i, 'app', $lines, i, now(), 'app'
	FROM generate_series(:from, :to) i
SQL
}

my $items = <<'SQL';
	INSERT INTO idempotency_internal.stock_item (sku, received)
	SELECT 'sku-' || i, 100000000 FROM generate_series(:from, :to) i
SQL

my @reads = (
	[ 'stock_verify of all', 'SELECT count(*) FROM stock_verify()', 'linear' ],
	[ 'stock_verify of one', "SELECT * FROM stock_verify('sku-7')", 'constant' ],
	[ 'stock_reservation_status', "SELECT * FROM stock_reservation_status('order-77')", 'constant' ],
	[ 'stock_level', "SELECT * FROM stock_level('sku-7')", 'constant' ]);

growth('orders of a line',
	rows => join(';', $items, open_lines(0, 1, "'sku-' || i")),
	calls => \@reads);
growth('orders of two lines, one of them confirmed',
	n => 100,
	rows => join(';', $items, open_lines(0, 2, "'sku-' || i"),
		closed_lines('stock_log', 1, 2, "'sku-' || i")),
	calls => \@reads);

growth('what an application does beside other orders',
	base => "INSERT INTO idempotency_internal.stock_item (sku, received) VALUES ('first', 1000), ('second', 1000)",
	rows => join(';', $items, open_lines(0, 2, "'sku-' || i"), closed_lines('stock_log', 1, 2, "'sku-' || i"),
		closed_lines('stock_history_1', 0, 1, "'sku-' || i") =~ s/order-/old-/r =~ s/'confirm'/'cancel'/r),
	calls => [
		map { [ $_->[0], $_->[1], $_->[2] // 'constant' ] }
		  [ 'stock_reserve', "SELECT stock_reserve('first', 1, 'new')" ],
		[ 'stock_reserve anew', "SELECT stock_reserve('first', 1, 'old-7', anew => true)" ],
		[ 'stock_reserve_many', q(SELECT stock_reserve_many('{"first": 1, "second": 2}', 'new')) ],
		[ 'stock_confirm', "SELECT stock_confirm('order-7')" ],
		[ 'stock_cancel', "SELECT stock_cancel('order-7')" ],
		[ 'stock_extend', "SELECT stock_extend('order-7', '1 h')" ],
		[ 'stock_change_many', q(SELECT stock_change_many('order-7', '{"first": 1}')) ],
		[ 'stock_reinstate', "SELECT stock_reinstate('old-7')" ],
		[ 'stock_receive', "SELECT stock_receive('first', 1)" ],
		[ 'stock_adjust', "SELECT stock_adjust('first', -1, NULL)" ],
		[ 'stock_transfer', "SELECT stock_transfer('first', 'second', 1)" ],
		[ 'stock_backorder', "SELECT stock_backorder('first', 5)" ],
		[ 'stock_levels of an item', "SELECT * FROM stock_levels WHERE sku = 'sku-7'" ],
		[ 'stock_levels of all', 'SELECT * FROM stock_levels', 'linear' ],
		[ 'stock_holds of a reservation', "SELECT * FROM stock_holds WHERE reservation = 'order-7'" ],
		[ 'stock_holds of an item', "SELECT * FROM stock_holds WHERE sku = 'sku-7' ORDER BY expires_at LIMIT 10" ] ]);

# After a start, or external DML, no counter knows what lapses or waits.
growth('items without counters',
	n => 2500,
	worker => 1,
	states => [ 'no statistics', 'statistics' ],
	rows => join(';', $items, open_lines(0, 1, "'sku-' || i")),
	calls => [ [ 'a step of the search for what has lapsed', 'SELECT idempotency_internal.stock_expire(1000)', 'constant' ] ]);

# Items that are slow: the log has a row of each, which is young or old.
sub slow_items
{
	my ($age) = @_;

	return <<"SQL";
	INSERT INTO idempotency_internal.stock_log (id, quantity, at, change, sku) OVERRIDING SYSTEM VALUE
	SELECT i, 1, now() - interval '$age', 'receive', 'sku-' || i FROM generate_series(:from, :to) i
SQL
}

growth('a long history',
	rows => closed_lines('stock_history_1', 0, 1, "'sku-' || i") . ';'
		. slow_items('1 h') =~ s/stock_log/stock_history_0/r =~ s/OVERRIDING SYSTEM VALUE//r . ';'
		. closed_lines('stock_log', 0, 1, "'sku-' || i") =~ s/order-/other-/r,
	calls => [
		[ 'docs/queries/reservation.sql',
			slurp_file("$FindBin::RealBin/../../../docs/queries/reservation.sql") =~ s/:'reservation'/'order-77'/r =~ s/;\s*$//r,
			'constant' ],
		[ 'stock_reservation_status', "SELECT * FROM stock_reservation_status('order-77')", 'constant' ] ]);

my $compact = 'SELECT idempotency_internal.stock_compact(1000)';

# More than two steps pass: the one that is measured comes after another.
growth('items that are slow',
	n => 12000,
	worker => 1,
	states => [ 'no statistics', 'statistics' ],
	rows => join(';', $items, slow_items('1 h')),
	calls => [ [ 'a step of the compaction', $compact, 'constant' ] ]);
growth('old rows of items that are slow',
	worker => 1,
	states => [ 'no statistics', 'statistics', 'old snapshot' ],
	rows => join(';', $items, slow_items('2 d')),
	churn => $compact,
	calls => [ [ 'a step of the compaction', $compact, 'constant' ] ]);

growth('names that are used',
	n => 30000,
	worker => 1,
	states => ['no statistics'],
	rows => closed_lines('stock_history_1', 0, 1, "'sku-' || i"),
	calls => [ [ 'a step of learning names', 'SELECT idempotency_internal.stock_learn_names(1000)', 'constant' ] ]);

# More holds than a step reads.
growth('names of open reservations',
	n => 12000,
	worker => 1,
	states => ['no statistics'],
	rows => open_lines(0, 1, "'sku-' || i % 100"),
	calls => [ [ 'a step of learning names', 'SELECT idempotency_internal.stock_learn_names(1000)', 'constant' ] ]);

# A table of the history is dropped: what has open lines is kept.
my $retired = <<'SQL';
	SELECT idempotency_internal.idempotency_ring_switch('idempotency_internal.stock_ring');
	UPDATE idempotency_internal.stock_ring SET closed_at = '2000-01-01' WHERE state = 'old';
	DO $$ BEGIN ASSERT idempotency_internal.stock_forget(); END $$;
	UPDATE idempotency_internal.stock_ring SET quiet_xid = '1000000000' WHERE state = 'retired'
SQL
my $reinstated = closed_lines('stock_history_0', 0, 2, "'sku-' || i") =~ s/'confirm'/'reinstate'/r
  . ';' . closed_lines('stock_history_1', 1, 2, "'sku-' || i") =~ s/1000000/500000/r =~ s/'confirm'/'cancel'/r;

growth('a retired table of the history, beside open reservations',
	base => $retired,
	worker => 1,
	states => [ 'no statistics', 'statistics' ],
	rows => join(';', $items, open_lines(0, 2, "'sku-' || i"), closed_lines('stock_history_0', 1, 2, "'sku-' || i"), $reinstated),
	calls => [ [ 'a step of forgetting', 'SELECT idempotency_internal.stock_forget(10)', 'constant' ] ]);
growth('the parts of such a step',
	base => $retired,
	worker => 1,
	rows => join(';', $items, open_lines(0, 2, "'sku-' || i"), closed_lines('stock_history_0', 1, 2, "'sku-' || i"), $reinstated),
	calls => [
		[ 'reinstatements', "SELECT idempotency_internal.stock_keep_some(0::smallint, 0, NULL, 10)", 'constant' ],
		[ 'holds', "SELECT idempotency_internal.stock_keep_some(0::smallint, NULL, 'order-2', 10)", 'constant' ] ]);

# One reservation lapses beside many open ones, and beside many that have lapsed
# before, which an old snapshot may still see.
growth('open reservations',
	worker => 1,
	rows => join(';', $items, open_lines(0, 1, "'sku-' || i"), <<'SQL'),
	SELECT count(stock_reserve('sku-7', 1, 'lapsed-' || i, ttl => '1 us')) FROM generate_series(:from, :to) i;
	DO $$ BEGIN WHILE idempotency_internal.stock_expire(1000) <> 0 LOOP END LOOP; END $$
SQL
	churn => 'SELECT 1',
	calls => [
		[ 'a step of the expiry',
			"SELECT stock_reserve('sku-7', 1, 'lapses', ttl => '1 us'); SELECT idempotency_internal.stock_expire(1000)",
			'constant' ],
		[ 'stock_reserve that falls short', "SELECT stock_reserve('sku-7', 1000000000, 'short')", 'constant' ] ]);

# Queues of one reservation each, and one long queue, of which many have left.
my $queues = <<'SQL';
	INSERT INTO idempotency_internal.stock_hold
		(quantity, expires_at, line, reservation, sku, lines, id, at, actor)
	SELECT 0, now() + interval '30 days', 0, 'waits-' || i || q, CASE q WHEN 'a' THEN 'sold-' || i ELSE 'sold' END,
		1, i, now(), 'app'
	FROM generate_series(:from, :to) i, (VALUES ('a'), ('b')) queue(q);
	INSERT INTO idempotency_internal.stock_queue (id, quantity, ttl_us, sku, reservation)
	SELECT id, 1, 600000000, sku, reservation FROM idempotency_internal.stock_hold
	WHERE quantity = 0 AND id BETWEEN :from AND :to;
	INSERT INTO idempotency_internal.stock_item (sku)
	SELECT 'sold-' || i FROM generate_series(:from, :to) i;
	INSERT INTO idempotency_internal.stock_item (sku) VALUES ('sold') ON CONFLICT DO NOTHING
SQL
my $all_queues = 'DO $$ BEGIN WHILE idempotency_internal.stock_serve(1000) LOOP END LOOP; END $$';

growth('a long queue',
	rows => $queues =~ s/, \('b'\)//r =~ s/'sold-' \|\| i ELSE/'sold' ELSE/r . "; SELECT stock_receive('sold', 1)"
		. '; DO $$ BEGIN FOR i IN 1..2 LOOP WHILE idempotency_internal.stock_expire(1000) <> 0 LOOP END LOOP; END LOOP; END $$',
	calls => [ [ 'stock_stats', 'SELECT * FROM stock_stats', 'constant' ] ]);
growth('queues',
	worker => 1,
	rows => "$queues; $all_queues; SELECT stock_receive('sold', 9 * (:to - :from) / 10); $all_queues",
	churn => 'SELECT 1',
	calls => [
		[ 'to join a queue', "SELECT stock_reserve('sold-7', 1, 'joins', wait => true)", 'constant' ],
		[ 'a position in a queue', "SELECT stock_position('waits-907b')", 'constant' ],
		[ 'stock_waiting of an item', "SELECT * FROM stock_waiting WHERE sku = 'sold-7'", 'constant' ],
		[ 'stock_stats of all queues', 'SELECT * FROM stock_stats', 'linear' ],
		[ 'stock_status of all queues', 'SELECT * FROM idempotency_internal.stock_status()', 'linear' ],
		[ 'the last position in a queue', "SELECT stock_position('waits-' || :n || 'b', 50)", 'constant' ],
		[ 'to serve one', "SELECT idempotency_internal.stock_serve_item('sold', 1) FROM stock_receive('sold', 1)", 'constant' ] ]);

growth('queues without counters',
	n => 2500,
	worker => 1,
	states => [ 'no statistics', 'statistics' ],
	rows => $queues =~ s/, \('b'\)//r,
	calls => [ [ 'a step of the look at all queues', 'SELECT idempotency_internal.stock_serve(1000)', 'constant' ] ]);

done_testing();
