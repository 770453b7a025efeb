# The saga of docs/recipes ends each order with all of its steps, or with all of
# them undone, although the program is killed between each pair of steps and
# the providers fail.  If this fails, a customer pays twice or for nothing, or
# stock is lost.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(basename);
use FindBin;
use lib "$FindBin::RealBin/../lib";
use HTTP::Tiny;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;

use constant { ORDERS => 40, PRICE => 5, HATS => 200 };

my $node = start_server('shop', internal_path => 0);
my $programs = abs_path("$FindBin::RealBin/../programs");
my $providers = Program->start([ 'node', "$programs/providers.js" ]);
my ($port) = $providers->line('listening') =~ /(\d+)$/ or die 'the providers do not start';
my $url = "http://127.0.0.1:$port";

prepare_recipe($node, 'saga.sql');
sql(qq(
	SELECT idempotency_grant_reader('shop');
	SELECT stock_receive('hat', ${\ HATS}), stock_receive('cap', 1);
	SELECT outbox_subscribe('saga', NULL, topics => '{saga.*}', start => 'earliest',
		retry_schedule => '{0 s}' || array_fill(interval '0.1 s', '{99}'))));

sub saga
{
	return start_recipe('saga.js', as_shop($node), RESTART => 1, PROVIDER_URL => $url, LEASE => '300 ms', @_);
}

sub place
{
	my ($id, $sku, $quantity) = @_;
	return sql("SET ROLE shop; SELECT place_order('$id', '$sku', $quantity, $quantity * ${\ PRICE})");
}

sub wait_for_all
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, "SELECT bool_and(state IN ('shipped', 'cancelled')) FROM orders", $what);
	return wait_until($node, 'SELECT lag_events + in_flight + waiting + parked = 0 FROM outbox_subscriptions', 'and no event is left');
}

# What the providers have done, as order => amount.
sub effects
{
	my ($step) = @_;
	return decode_json(HTTP::Tiny->new->get("$url/effects")->{content})->{$step};
}

# The sums of the shop, and of the providers, must be those of the orders.
sub check_sums
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql(q(SELECT count(*) FROM orders o WHERE (SELECT coalesce(sum(amount), 0) FROM payments WHERE order_id = o.id)
		<> CASE state WHEN 'shipped' THEN amount ELSE 0 END)), '0', "$what: paid is what was shipped");
	is(sql('SELECT count(*) - count(DISTINCT (order_id, sign(amount))) FROM payments'), '0', "$what: and once");
	is(sql(q(SELECT string_agg(order_id, ' ' ORDER BY order_id) FROM shipments)),
		sql(q(SELECT string_agg(id, ' ' ORDER BY id) FROM orders WHERE state = 'shipped')), "$what: each is shipped once");
	is(sql(q(SELECT available || ' ' || reserved FROM stock_level('hat'))),
		HATS - sql(q(SELECT coalesce(sum(quantity), 0) FROM orders WHERE sku = 'hat' AND state = 'shipped')) . ' 0',
		"$what: what was shipped has left the stock, and nothing else");
	for my $case ([ 'charge', '> 0' ], [ 'refund', '< 0' ])
	{
		my ($step, $sign) = @$case;
		my $done = effects($step);
		is(join(' ', map { "$_=$done->{$_}" } sort keys %$done),
			sql(qq(SELECT coalesce(string_agg(order_id || '=' || abs(amount), ' ' ORDER BY order_id COLLATE "C"), '') FROM payments WHERE amount $sign)),
			"$what: the $step of the provider is what the shop knows");
	}
	is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', "$what: the ledger is right");
	is(sql(q(SELECT count(*) - count(DISTINCT (key, topic)) FROM outbox_log)), '0', "$what: each step has begun once");
	is(sql('SELECT dead FROM outbox_subscriptions'), '0', "$what: no event was given up");
	return;
}

# --- killed between each pair of steps

my $kills = PostgreSQL::Test::Utils::tempdir();
my $program = saga(NODE_ARGUMENTS => [ '--require', "$programs/killed_saga.js" ], KILLS => $kills);
place('good', 'hat', 2);
place('poor', 'hat', 3);
place('far', 'hat', 4);
place('none', 'cap', 2);
wait_for_all('all orders end');
is(sql(q(SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM orders)),
	'far cancelled, good shipped, none cancelled, poor cancelled', 'as they should');
is(join(', ', sort map { basename($_) } glob("$kills/*")),
	join(', ', sort 'before ack', map { ("before $_", "after $_") } qw(charge ship refund),
		map { "saga.$_" } qw(reserved charged shipped declined unshippable refunded cancelled)),
	'the program was killed at each point');
check_sums('kills');
$program->stop;

# --- many orders, two programs, and providers that fail

my @running = map { saga() } 1 .. 2;
my @kinds = ('shaky', 'plain', 'shaky-poor', 'far', 'shaky-far');
place("$kinds[ $_ % @kinds ]-$_", 'hat', 1 + $_ % 7) for 1 .. ORDERS;
wait_until($node, q(SELECT count(*) > 5 FROM orders WHERE state = 'shipped'), 'some are shipped');
$running[0]->crash;
wait_for_all('the other one does the rest');
is(sql(q(SELECT string_agg(DISTINCT regexp_replace(id, '-\d+$', '') || ' ' || state, ', ') FROM orders WHERE id LIKE '%-%')),
	'far cancelled, plain shipped, shaky shipped, shaky-far cancelled, shaky-poor cancelled', 'as they should');
check_sums('many');

$_->stop for $running[1], $providers;
done_testing();
