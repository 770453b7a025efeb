# The gRPC service of docs/recipes takes the request id from the metadata, and
# answers each outcome with the status that gRPC's documentation names.  If this
# fails, a call that is repeated has a second effect, or the client is told to
# do the wrong thing.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Cluster;
use Program;
use Server;
use Test::More;

my $node = start_server('shop', internal_path => 0);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $calls = 0;

prepare_recipe($node, 'grpc.sql');
sql("SELECT stock_receive('hat', 100), stock_receive('cap', 1)");

sub start_service
{
	return start_recipe('grpc.js', as_shop($node), PORT => $port)->wait_for_start('listening');
}

my $server = start_service();
my ($once, $patient) = map { start_recipe('grpc_client.js', TARGET => "127.0.0.1:$port", ATTEMPTS => $_) } 1, 5;

# Sends a call, and returns its name.
sub send_call
{
	my ($client, $key, %order) = @_;
	my $name = 'call-' . ++$calls;
	my %call = (name => $name, key => $key, account => 'ann', sku => 'hat', quantity => 2, %order);
	delete @call{ grep { !defined $call{$_} } keys %call };
	$client->say(encode_json(\%call));
	return $name;
}

sub answer
{
	my ($client, $name) = @_;
	return $client->line($name) =~ s/^\S+ //r;
}

sub place
{
	return answer($once, send_call($once, @_));
}

# --- the metadata

like(place(undef), qr/^INVALID_ARGUMENT idempotency-key must be/, 'no id');
like(place(''), qr/^INVALID_ARGUMENT/, 'an empty id');
like(place('x' x 256), qr/^INVALID_ARGUMENT/, 'a long id');
like(place([ 'a', 'b' ]), qr/^INVALID_ARGUMENT/, 'two ids');
like(place('a', account => undef), qr/^UNAUTHENTICATED/, 'no account');
is(sql('SELECT count(*) FROM orders'), '0', 'and nothing was done');

# --- an order: claim, work and reply in one transaction

is(place('order-1'), 'order 1', 'an order is placed');
is(place('order-1'), 'order 1 (replayed)', 'called again, it gets the same reply, marked as a replay');
is(sql('SELECT count(*) FROM orders'), '1', 'and is one order');
is(stock_level('hat'), '98 2', 'with one reservation');
like(place('order-1', quantity => 3), qr/^FAILED_PRECONDITION The idempotency-key was used/, 'the same id for another request');
is(place('order-1', account => 'bob'), 'order 2', 'the same id of another account is another id');
is(place('x' x 255), 'order 3', 'the longest id');

# --- refusals are saved too, without effects

is(place('order-4', sku => 'cap'), 'FAILED_PRECONDITION The stock is insufficient.', 'an order is refused');
sql("SELECT stock_receive('cap', 9)");
is(place('order-4', sku => 'cap'), 'FAILED_PRECONDITION The stock is insufficient. (replayed)', 'and stays so');
is(sql("SELECT count(*) FROM orders WHERE sku = 'cap'"), '0', 'its work is undone');
like(place('order-5', quantity => 0), qr/^INVALID_ARGUMENT An order has/, 'what is no order');
like(place('order-6', sku => 'cap'), qr/^order \d+$/, 'the next one is placed');

# --- while the call is being handled

my $session = session($node);
$session->query_safe('BEGIN; LOCK TABLE orders');
my $slow = send_call($once, 'order-7');
wait_for_lock($node, 'INSERT INTO orders', 'an order is being placed');
is(place('order-7'), 'UNAVAILABLE retry in 1000 ms: The call with this idempotency-key has not ended yet.',
	'meanwhile the same id is told when to retry');
my $waiting = send_call($patient, 'order-7');
wait_until($node, q(SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = 'shop' AND query = 'COMMIT' AND state = 'idle'),
	'a client with a retry policy is told so too');
$session->query_safe('ROLLBACK');
my $placed = answer($once, $slow);
like($placed, qr/^order \d+$/, 'the first one is placed');
is(answer($patient, $waiting), "$placed (replayed)", 'the other one has retried, and gets its reply');

# --- the connection to the database breaks

$session->query_safe('BEGIN; LOCK TABLE orders');
$slow = send_call($once, 'order-8');
wait_for_lock($node, 'INSERT INTO orders', 'an order is being placed');
sql(q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'));
like(answer($once, $slow), qr/^UNAVAILABLE retry in 1000 ms: Send the same call again/, 'the connection breaks');
$session->query_safe('ROLLBACK');
like(place('order-8'), qr/^order \d+$/, 'sent again, it is placed');

# --- the service is killed: the client repeats the call until there is a reply

$session->query_safe('BEGIN; LOCK TABLE orders');
$waiting = send_call($patient, 'order-9');
wait_for_lock($node, 'INSERT INTO orders', 'an order is being placed');
$server->crash;
$session->query_safe('ROLLBACK');
$server = start_service();
like(answer($patient, $waiting), qr/^order \d+/, 'the next process places it');
is(sql('SELECT count(*) FROM orders'), 7, 'once');
is(sql('SELECT sum(quantity) FROM orders WHERE sku = \'hat\''), (split / /, stock_level('hat'))[1], 'and what is ordered is what is reserved');

$_->stop for $once, $patient, $server;
$session->quit;
done_testing();
