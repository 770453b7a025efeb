# "Coming from Redis and Lua", with a real Redis: counters and reservations are
# imported, the answers are those of the script, and problems that Redis leaves
# to its users are solved: transactions that roll back, processes that crash,
# lost counters, orders that are never paid.  If this fails, stock drifts.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Program;
use Redis;
use Server;
use Test::More;

use constant { ROUNDS => 4, REQUESTS => 150 };

my $recipes = "$FindBin::RealBin/../../../docs/recipes";
my $redis = Redis->start;
my $node = start_server('shop', conf => 'idempotency.sweep_interval = 50ms', internal_path => 0);

prepare_recipe($node, 'redis_stock.sql');
sql("INSERT INTO customers VALUES ('ann')");

# The available and reserved quantity of an item.
# --- with Redis

sub reserve_in_redis
{
	my ($sku, $quantity, $order, $seconds) = @_;
	return $redis->command('--eval', "$recipes/redis_stock.lua", "stock:$sku", "reservation:$order", 'reservations',
		',', $sku, $order, $quantity, time + $seconds);
}

$redis->command(qw(MSET stock:hat 100 stock:cap 5 stock:scarf 0));
is(reserve_in_redis('hat', 10, 'old-1', 3600), 'enough 90', 'Redis reserves');
is(reserve_in_redis('cap', 2, 'old-1', 3600), 'enough 3', 'another line of the order');
is(reserve_in_redis('cap', 4, 'old-2', 3600), 'not-enough 3', 'refuses');
is(reserve_in_redis('mug', 1, 'old-2', 3600), 'key-missing', 'and does not know a product');
is(reserve_in_redis('hat', 7, 'late', -60), 'enough 83', 'a reservation has lapsed, and nobody has released it');

# --- imported, by a program that is interrupted

sub import_redis
{
	return start_recipe('redis_import.js', as_shop($node), PGUSER => 'postgres', REDIS_URL => $redis->url);
}

my $session = session($node);
$session->query_safe("BEGIN; SELECT idem_claim('scarf', 'redis import')");
my $import = import_redis();
wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%idem_claim%'),
	'the import is under way');
$import->crash;
$session->query_safe('ROLLBACK');
$import = import_redis();
ok($import->wait_for_end, 'it is begun again');
is(sql("SELECT count(*) || ' ' || count(DISTINCT sku) FROM idempotency_internal.stock_log WHERE change = 'receive'"), '3 3',
	'each item was received once');
import_redis()->wait_for_end;
is(stock_level('hat'), '90 10', 'what is left, what is reserved, and what has lapsed: once, however often it is run');
is(stock_level('cap'), '3 2', 'of the other item, too');
is(stock_level('scarf'), '0 0', 'one that is sold out is there');
is(sql("SELECT count(*) FROM idempotency_internal.stock_hold WHERE expires_at BETWEEN now() + interval '50 min' AND now() + interval '1 h'"),
	'2', 'the order has as long as it had');

$redis->command(qw(SET stock:hat -3));
$import = import_redis();
$import->wait_for_end;
is(stock_level('hat'), '90 10', 'a counter that has drifted below zero is not carried over');

# --- the same answers

my $service = start_recipe('redis_stock.js', as_shop($node));

sub say_to
{
	my ($program, $do, $order, $sku, $quantity, $customer) = @_;
	$customer //= 'ann';
	$program->say(qq({"do": "$do", "order": "$order")
		  . ($sku ? qq(, "sku": "$sku", "quantity": $quantity, "customer": "$customer"}) : '}'));
	return;
}

# Asks a process, and returns its answer.
sub ask
{
	my ($program, @request) = @_;
	say_to($program, @request);
	return $program->line($request[1]) =~ s/^\S+ //r;
}

sub request
{
	return ask($service, @_);
}

is(request('book', 'new-1', 'cap', 2), 'enough', 'enough');
is(request('book', 'new-2', 'cap', 2), 'not-enough 1', 'not-enough, and what is left');
is(request('book', 'new-2', 'mug', 1), 'key-missing', 'key-missing');
is(request('book', 'new-2', 'scarf', 1), 'not-enough 0', 'a product that is sold out is not missing');
is(sql('SELECT count(*) FROM bookings'), '1', 'what was refused is not booked');

is(request('cancel', 'new-1'), 'done', 'a cancel');
is(stock_level('cap'), '3 2', 'gives back');
is(request('cancel', 'new-1'), 'already_cancelled', 'once');
is(request('undo', 'new-1'), 'done', 'its undo');
is(stock_level('cap'), '1 4', 'takes again');
is(request('undo', 'new-1'), 'already_reserved', 'once');
is(request('cancel', 'new-1'), 'done', 'cancelled again');
is(request('book', 'new-3', 'cap', 3), 'enough', 'somebody else takes what was given back');
is(request('undo', 'new-1'), 'not-enough 0', 'now the undo is refused, and told what is left');
is(sql("SELECT state FROM bookings WHERE order_name = 'new-1'"), 'cancelled', 'and the booking stays cancelled');

is(request('finalise', 'old-1'), 'done', 'an order of the old system is finalised');
is(stock_level('hat'), '90 0', 'which lowers what is reserved, alone');
is(request('finalise', 'old-1'), 'already_confirmed', 'once');

is(sql(q(SELECT string_agg(concat_ws(' ', change, quantity, reservation, actor), ', ' ORDER BY id)
	FROM stock_history WHERE sku = 'cap' AND reservation IN ('old-1', 'new-1'))),
	'reserve 2 old-1 redis, reserve 2 new-1 shop, cancel 2 new-1 shop, reinstate 2 new-1 shop,'
	  . ' cancel 2 new-1 shop, confirm 2 old-1 shop', 'the log says who has done what');
is(sql("SELECT bool_and(at BETWEEN now() - interval '1 h' AND now()) FROM stock_history"), 't', 'and when');

# --- a transaction that rolls back after it has reserved

is(request('book', 'ghost', 'hat', 20, 'nobody'), 'rolled back (23503)', 'a booking fails at its commit');
is(stock_level('hat'), '90 0', 'its stock is back, and nobody had to give it back');
is(request('book', 'all', 'hat', 90), 'enough', 'to the last piece');
is(request('cancel', 'all'), 'done', 'which are given back');

# --- a process that crashes between the stock and the booking

my $another = start_recipe('redis_stock.js', as_shop($node));
$session->query_safe('BEGIN; LOCK TABLE bookings IN SHARE MODE');
say_to($service, 'book', 'half', 'hat', 30);
wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO bookings%'),
	'stock is reserved, and the booking not yet written');
is(ask($another, 'book', 'other', 'hat', 61), 'not-enough 60', 'meanwhile it counts as taken');
$service->crash;
$session->query_safe('COMMIT');
wait_until($node, "SELECT available = 90 FROM stock_level('hat')", 'the service crashes, and the stock is back');
is(sql("SELECT count(*) FROM bookings WHERE order_name = 'half'"), '0', 'without a booking');
$another->stop;

# --- an order that is never paid

$service = start_recipe('redis_stock.js', as_shop($node), TTL => '200 ms');
is(request('book', 'unpaid', 'hat', 40), 'enough', 'an order is booked');
wait_until($node, "SELECT available = 90 FROM stock_level('hat')", 'nobody pays, and its stock is free again');
is(request('finalise', 'unpaid'), 'expired', 'who pays now is told so');
$service->stop;

# --- counters are lost; in Redis they would have to be rebuilt

sql("SELECT stock_receive('belt', 1000000), stock_receive('sock', 40)");
$service = start_recipe('redis_stock.js', as_shop($node));
is(request('book', 'kept', 'sock', 15), 'enough', 'stock is reserved');
$service->stop;
$node->stop('immediate');
$node->start;
$service = start_recipe('redis_stock.js', as_shop($node));
is(request('book', 'after', 'sock', 26), 'not-enough 25', 'after a crash of the server the counters are right');

# --- many requests, bookings that roll back, and all kinds of crashes

my @disturbances = (
	sub { $service->crash; $service = start_recipe('redis_stock.js', as_shop($node)) },
	sub { $node->stop('immediate'); $node->start },
	sub { sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'") });

for my $round (0 .. ROUNDS - 1)
{
	my $before = sql('SELECT count(*) FROM bookings');
	for my $n (1 .. REQUESTS)
	{
		my $order = "many-$round-$n";
		say_to($service, 'book', $order, $n % 3 ? 'belt' : 'sock', 1 + $n % 4, $n % 5 ? 'ann' : 'nobody');
		say_to($service, (qw(cancel finalise))[ $n % 2 ], 'many-' . $round . '-' . ($n - 20)) if $n > 20;
		say_to($service, 'undo', 'many-' . $round . '-' . ($n - 40)) if $n > 40 && $n % 4 == 0;
	}
	wait_until($node, "SELECT count(*) > $before + 20 FROM bookings", 'some is done');
	$disturbances[ $round % @disturbances ]->();
}
is(request('book', 'last', 'belt', 1), 'enough', 'in the end all is well');

is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'nothing has drifted');
is(sql(q(SELECT string_agg(l.sku, ' ') FROM stock_levels l
	LEFT JOIN (SELECT sku, sum(quantity) FILTER (WHERE state = 'booked') AS booked,
			sum(quantity) FILTER (WHERE state = 'final') AS final FROM bookings GROUP BY sku) b USING (sku)
	WHERE sku IN ('belt', 'sock') AND (reserved, confirmed) IS DISTINCT FROM (coalesce(booked, 0), coalesce(final, 0)))),
	'', 'stock is what the bookings say');
cmp_ok(sql("SELECT count(*) FROM bookings WHERE state = '$_'"), '>', 5, "many were $_") for qw(booked cancelled final);

$session->quit;
$redis->stop;
done_testing();
