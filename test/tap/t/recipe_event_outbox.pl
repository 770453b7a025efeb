# "Coming from event-outbox": a service whose two parts communicate by events,
# with crashes of the service, the relay and the server.  If this fails, a part
# gets events of a rolled back transaction, misses committed ones, gets them in
# another order, or handles one twice.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use Program;
use Receiver;
use Server;
use Test::More;

use constant { ORDERS => 20, ROUNDS => 6, CHANGES => 5 };

my $node = start_server('service', internal_path => 0);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $schedule = '0 s' . ',100 ms' x 99;

prepare_recipe($node, 'event_outbox.sql');
sql("INSERT INTO customers VALUES ('ann')");
my $secret = sql("SELECT outbox_subscribe('service', 'http://127.0.0.1:$port/',"
	  . " topics => '{orders.*,warehouse.*}', retry_schedule => '{$schedule}')");

# Another group of consumers, which reads all events independently.
my $receiver = Receiver->start;
subscribe($node, $receiver, '/ok/audit');

sub service
{
	my (%more) = @_;
	return start_recipe('event_outbox.js', as_shop($node),
		PORT => $port, WEBHOOK_SECRET => $secret, %more)->wait_for_start('listening');
}

my $service = service();

sub request_later
{
	my ($order, $quantity, $customer) = @_;
	$customer //= 'ann';
	$service->say(qq({"order": "$order", "quantity": $quantity, "customer": "$customer"}));
	return;
}

# Changes an order, and returns the service's answer.
sub request
{
	request_later(@_);
	return $service->line($_[0]) =~ s/^\S+ //r;
}

sub picks
{
	my ($order) = @_;
	return sql("SELECT count(*) FROM picks WHERE order_name = '$order'");
}

sub is_done
{
	my ($order, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT picked = version FROM orders WHERE name = '$order'", $what);
}

my $session = session($node);
my $lock = 'BEGIN; SELECT FROM shelf FOR NO KEY UPDATE';

# --- without faults: a request, an event, a handler, its event, its handler

is(request('plain', 2), '1', 'an order is taken');
is($service->line('orders.changed plain'), 'orders.changed plain 1 claimed', 'the warehouse hears of it');
is($service->line('warehouse.picked plain'), 'warehouse.picked plain 1 claimed',
	'what the warehouse does is announced in turn');
is_done('plain', 'and noted');
is(sql("SELECT version, quantity FROM picks WHERE order_name = 'plain'"), '1|2', 'the event had the data');

# --- an event of a transaction that is rolled back

is(request('ghost', 1, 'nobody'), 'refused 23503', 'a change fails at its commit, after it was announced');
is(request('after', 1), '1', 'the next one does not');
is_done('after', 'and is delivered');
is(sql("SELECT count(*) FROM outbox_log WHERE key = 'ghost'"), '0', 'of the failed one there is no event');
is(join(' ', grep { /ghost/ } $service->lines), '', 'and nothing was delivered');

# --- a consumer that crashes while it works gets the event again

$session->query_safe($lock);
is(request('half', 1), '1', 'an order is taken');
wait_for_lock($node, 'UPDATE shelf', 'the warehouse is half done');
$service->crash;
$session->query_safe('COMMIT');
is(picks('half'), '0', 'a crash undoes that half');
$service = service();
is($service->line('orders.changed half'), 'orders.changed half 1 claimed', 'and the event comes again');
is_done('half', 'to be done');
is(picks('half'), '1', 'once');

# --- a consumer that crashes after its commit gets it again too, and ignores it

$service->stop;
$service = service(NODE_ARGUMENTS => [ '--require', "$FindBin::RealBin/../programs/never_answer.js" ]);
is(request('done', 1), '1', 'an order is taken');
is($service->line('not answered:'), 'not answered: 204', 'the warehouse has done its part, and has not said so');
is(picks('done'), '1', 'which is committed');
$service->crash;
$service = service();
is($service->line('orders.changed done'), 'orders.changed done 1 completed', 'after a crash the event comes again');
is_done('done', 'and the rest is done');
is(picks('done'), '1', 'the effect is there once');

# --- the relay is killed with a request in flight

$session->query_safe($lock);
is(request('relay', 1), '1', 'an order is taken');
wait_for_lock($node, 'UPDATE shelf', 'the warehouse is half done');
ok(terminate_worker($node, 'relay'), 'the relay dies');
wait_for_lock($node, 'idem_claim', 'the next relay sends the event again, and the copy waits for the first one');
$session->query_safe('COMMIT');
is(join(', ', sort(map { $service->line('orders.changed relay') } 1 .. 2)),
	'orders.changed relay 1 claimed, orders.changed relay 1 completed', 'one of them has done it, and the other learns that');
is_done('relay', 'the rest is done');
is(picks('relay'), '1', 'with one effect');
$session->quit;

# --- many changes of some orders, handlers that fail, and all kinds of crashes

sql(q(
	CREATE FUNCTION fail_sometimes() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF random() < 0.1 THEN
			RAISE 'bad luck';
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER fail_sometimes BEFORE INSERT ON picks
		FOR EACH ROW EXECUTE FUNCTION fail_sometimes()));

my @disturbances = (
	sub { $service->crash; $service = service() },
	sub { terminate_worker($node, 'relay') },
	sub { $node->stop('immediate'); $node->start });

for my $round (0 .. ROUNDS - 1)
{
	my $before = sql('SELECT coalesce(max(id), 0) FROM picks');
	request_later("many-$_", $round) for (1 .. ORDERS) x CHANGES;
	wait_until($node, "SELECT count(*) > 10 FROM picks WHERE id > $before", 'some is done');
	$disturbances[ $round % @disturbances ]->();
}
wait_until($node, 'SELECT bool_and(picked = version) FROM orders', 'all that was committed is done');

is(sql(q(SELECT count(*) FROM orders o WHERE ARRAY(SELECT generate_series(1, o.version)) <>
		ARRAY(SELECT p.version FROM picks p WHERE p.order_name = o.name ORDER BY p.id))),
	'0', 'each change of an order once, and in their order');
cmp_ok(sql('SELECT sum(version) FROM orders'), '>', ORDERS * CHANGES * ROUNDS / 2, 'of many changes');
is(sql('SELECT picks = (SELECT count(*) FROM picks) FROM shelf'), 't', 'and everything that belongs to it');
is(sql('SELECT count(*) FROM outbox_dead'), '0', 'nothing was given up');

# --- the other group

my $events = sql('SELECT count(*) FROM outbox_log');
is($events, sql('SELECT 2 * sum(version) FROM orders'), 'there is an event for each change and each pick, and no other');
$receiver->wait_for('audit', events => $events);
my %heard = map { +"$_->{type} $_->{data}{order} $_->{data}{version}" => 1 } $receiver->requests('audit');
is(scalar(keys %heard), $events, 'another group of consumers has got all of them');

done_testing();
