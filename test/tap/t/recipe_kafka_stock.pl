# "From a stock service on Kafka", with real Kafka clients: lines of orders are
# gathered, reserved together, and confirmed or refused with a list of
# shortages, although messages are published twice or come again, and consumers
# crash before or after their commit.  If this fails, a line counts twice or
# never, an order keeps half of its lines, or no event tells about it.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Broker;
use Digest::SHA qw(sha256_hex);
use JSON::PP;
use Program;
use Receiver;
use Server;
use Test::More;

use constant { ORDERS => 40, COPIES => 2, HATS => 100 };

my $broker = Broker->start;
my $receiver = Receiver->start;
my $node = start_server('stock', conf => 'idempotency.sweep_interval = 50ms', internal_path => 0);

prepare_recipe($node, 'kafka_stock.sql');
sql("SELECT stock_receive('hat', 10), stock_receive('cap', 5), stock_receive('mug', 3)");
subscribe($node, $receiver, '/ok/shop', topics => "'{order.*}'");
my $producer = start_recipe('kafka_producer.js', KAFKA_BROKERS => $broker->brokers);

sub consumer
{
	return $broker->start_consumer('kafka_stock.js', as_shop($node), @_);
}

# Publishes messages, and waits until the broker has them.
sub publish
{
	my (@messages) = @_;
	$producer->say(map { JSON::PP->new->canonical->encode($_) } @messages);
	$producer->line($_->{id}) eq "$_->{id} published" or die "$_->{id} is not published" for @messages;
	return;
}

# The messages of an order: its lines are pairs of a sku and a quantity.
sub lines_of
{
	my ($order, @lines) = @_;
	my $of = @lines / 2;
	my %quantity = @lines;
	my $hash = sha256_hex(join("\n", map { "$_=$quantity{$_}" } sort keys %quantity));

	return map { +{ topic => 'order-lines', key => $lines[ 2 * $_ ], id => "$order-$_", order => $order, of => $of, hash => $hash,
			sku => $lines[ 2 * $_ ], quantity => $lines[ 2 * $_ + 1 ] } } 0 .. $of - 1;
}

sub payment
{
	my ($order, $paid) = @_;
	return { topic => 'payments', key => $order, id => "$order-paid", order => $order,
		paid => $paid ? JSON::PP::true : JSON::PP::false };
}

# Publishes an order, and returns the outcomes of its lines, sorted.
sub outcomes
{
	my ($consumer, @messages) = @_;
	publish(@messages);
	return join(', ', sort map { $consumer->line($_->{id}) =~ s/^\S+ //r } @messages);
}

# Waits for the event of an order, and returns its topic and content.
sub event
{
	my ($order, $number) = @_;
	wait_until($node, "SELECT count(*) >= $number FROM outbox_log WHERE key = '$order'", "there is an event of $order");
	$receiver->wait_for('shop', events => sql("SELECT count(*) FROM outbox_log WHERE topic LIKE 'order.%'"));
	my ($event) = (grep { $_->{data}{order} eq $order } $receiver->requests('shop'))[ $number - 1 ];
	return "$event->{type} " . JSON::PP->new->canonical->encode($event->{data}{shortages} // []);
}

# --- without faults

my $consumer = consumer();
is(outcomes($consumer, lines_of('plain', hat => 2, cap => 1)), 'gathering, reserved',
	'lines are gathered, and reserved when the last has come');
is(join(', ', map { stock_level($_) } qw(hat cap)), '8 2, 4 1', 'all of them');
is(event('plain', 1), 'order.reserved []', 'which is announced');
is(outcomes($consumer, payment('plain', 1)), 'confirmed', 'the order is paid');
is(join(', ', map { stock_level($_) } qw(hat cap)), '8 0, 4 0', 'and has left the stock');
is(event('plain', 2), 'order.confirmed []', 'which is announced, too');

is(outcomes($consumer, lines_of('back', mug => 3)), 'reserved', 'an order of one line');
is(outcomes($consumer, payment('back', 0)), 'cancelled', 'that is not paid');
is(stock_level('mug'), '3 0', 'gives everything back');

# --- refused, with all shortages

is(outcomes($consumer, lines_of('short', hat => 100, cap => 9, mug => 1)), 'gathering, gathering, refused',
	'an order that falls short is refused');
is(event('short', 1), 'order.refused [{"available":4,"missing":5,"sku":"cap","wanted":9},'
	  . '{"available":8,"missing":92,"sku":"hat","wanted":100}]', 'with the list of products and how much is there');
is(join(', ', map { stock_level($_) } qw(hat cap mug)), '8 0, 4 0, 3 0', 'no line of it is left to be undone');
is(outcomes($consumer, payment('short', 1)), 'unknown', 'a payment of it finds nothing');

# --- published twice

is(outcomes($consumer, (lines_of('twice', hat => 1, cap => 1))[0]), 'gathering', 'a line comes');
is(outcomes($consumer, (lines_of('twice', hat => 1, cap => 1))[0]), 'completed', 'and again, which is not the other one');
is(outcomes($consumer, (lines_of('twice', hat => 1, cap => 1))[1]), 'reserved', 'that comes now');
is(outcomes($consumer, (lines_of('twice', hat => 1, cap => 1))[1]), 'completed', 'and again');
is(join(', ', map { stock_level($_) } qw(hat cap)), '7 1, 3 1', 'each counts once');

# --- bad data

is(outcomes($consumer, lines_of('bad', hat => -1)), 'refused (23514)', 'a line that is none is noted down');
is(outcomes($consumer, lines_of('good', hat => 1)), 'reserved', 'and those behind it are not held up');

# --- lines that do not belong together

my ($hat, $cap) = lines_of('mixed', hat => 1, cap => 1);
my (undef, $newer) = lines_of('mixed', hat => 1, cap => 2);
$newer->{id} = 'mixed-newer';
is(outcomes($consumer, $hat), 'gathering', 'a line comes');
is(outcomes($consumer, $newer), 'refused (22023)', 'a line of another version of the order is noted down');
is(outcomes($consumer, $cap), 'reserved', 'and the order is that of the first');
is(sql("SELECT string_agg(sku || quantity, ' ' ORDER BY sku) FROM stock_holds WHERE reservation = 'mixed'"), 'cap1 hat1', 'with its lines');
($hat, $cap) = lines_of('changed', hat => 1, cap => 1);
$cap->{quantity} = 2;
is(outcomes($consumer, $hat, $cap), 'gathering, refused', 'an order of which a line was changed on the way is refused');
is(sql("SELECT payload ->> 'reason' FROM outbox_log WHERE key = 'changed'"), 'the lines are not those of the order', 'with the reason');
is(sql("SELECT count(*) FROM stock_holds WHERE reservation = 'changed'"), '0', 'and nothing of it is reserved');

# --- a consumer crashes while it works

my $session = session($node);
$session->query_safe('BEGIN; LOCK TABLE order_lines IN SHARE MODE');
publish(lines_of('half', mug => 1));
wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'
	AND query LIKE 'INSERT INTO order_lines%'), 'a line is half done');
$consumer->crash;
finish($session, 'COMMIT');
is(stock_level('mug'), '3 0', 'nothing of it stays');
$consumer = consumer();
is($consumer->line('half-0'), 'half-0 reserved', 'the next consumer does it');
is(stock_level('mug'), '2 1', 'once');
$consumer->stop;

# --- a consumer crashes after its commit, before its offset is committed

$consumer = consumer(PRELOAD => 'never_commit.js');
publish(lines_of('done', mug => 1));
is($consumer->line('not committed:'), 'not committed: order-lines', 'a line is done');
is(stock_level('mug'), '1 2', 'and committed');
$consumer->crash;
$consumer = consumer(TTL => '200 ms');
is($consumer->line('done-0'), 'done-0 completed', 'it comes again, and is recognised');
is(stock_level('mug'), '1 2', 'it counts once');
is(sql("SELECT count(*) FROM outbox_log WHERE key = 'done'"), '1', 'and is announced once');

# --- an order that is never paid

is(outcomes($consumer, lines_of('late', mug => 1)), 'reserved', 'an order is reserved');
wait_until($node, "SELECT available = 1 FROM stock_level('mug')", 'it is not paid, and its stock is free again');
is(outcomes($consumer, payment('late', 1)), 'expired', 'a payment comes too late');
is(event('late', 2), 'order.expired []', 'which is announced');
$consumer->stop;

# --- many orders for one hot item, published twice, two consumers, and a crash

sql('SELECT ' . join(', ', map { "stock_receive('$_', " . HATS . ')' } qw(ball belt boot coat)));
my @orders = map { [ lines_of("many-$_", ball => 1 + $_ % 5, (qw(belt boot coat))[ $_ % 3 ] => 2) ] } 1 .. ORDERS;
my @consumers = map { consumer() } 1 .. 2;
publish(map { (@$_) x COPIES } @orders);
wait_until($node, "SELECT count(*) > 10 FROM orders WHERE name LIKE 'many-%' AND gathered = line_count", 'some are done');
$consumers[0]->crash;
wait_until($node, 'SELECT count(*) = ' . ORDERS . " FROM orders WHERE name LIKE 'many-%' AND gathered = line_count",
	'the other one does the rest');
is(sql("SELECT count(*) FROM order_lines WHERE order_name LIKE 'many-%'"), 2 * ORDERS, 'each line is there once');
is(sql("SELECT count(*) FROM orders WHERE name LIKE 'many-%' AND state NOT IN ('reserved', 'refused')"), '0',
	'each order was reserved or refused');
cmp_ok(sql("SELECT count(*) FROM orders WHERE name LIKE 'many-%' AND state = '$_'"), '>', 2, "many were $_")
  for qw(reserved refused);
is(sql(q(SELECT count(*) FROM stock_levels JOIN LATERAL (SELECT sum(quantity) AS ordered
	FROM order_lines JOIN orders ON name = order_name WHERE state = 'reserved' AND order_lines.sku = stock_levels.sku) o ON true
	WHERE sku IN ('ball', 'belt', 'boot', 'coat') AND reserved <> ordered)), '0', 'what is reserved is what they ordered');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
$receiver->wait_for('shop', events => sql("SELECT count(*) FROM outbox_log WHERE topic LIKE 'order.%'"));
my %told = map { +"$_->{type} $_->{data}{order}" => 1 } grep { $_->{data}{order} =~ /^many/ } $receiver->requests('shop');
is(join(' ', sort keys %told), sql(q(SELECT string_agg(format('order.%s %s', state, name), ' '
	ORDER BY format('order.%s %s', state, name) COLLATE "C") FROM orders WHERE name LIKE 'many-%')),
	'and the shop has heard of each what became of it');

$_->stop for $consumers[1], $producer;
$broker->stop;
done_testing();
