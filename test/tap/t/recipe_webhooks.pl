# The receiver of webhooks at the beginning of docs/outbox.md: a signed event
# counts once, however often it comes, and in order.  If this fails, the first
# receiver that newcomers copy ships a hat twice, or one that was cancelled.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use Program;
use Server;
use Test::More;

my $node = start_server('shop', internal_path => 0);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $url = "http://127.0.0.1:$port/webhooks";
my $schedule = '0 s' . ',100 ms' x 29;

# The receiver has a database of its own.
sql('CREATE DATABASE shipping');
prepare_recipe($node, 'webhooks.sql', 'shipping');
my $secret = sql("SELECT outbox_subscribe('shipping', '$url',"
	  . " topics => '{order.*}', timeout => '2 s', retry_schedule => '{$schedule}')");

sub receiver
{
	my (%more) = @_;
	return start_recipe('webhooks.js', as_shop($node, 'shipping'),
		PORT => $port, WEBHOOK_SECRET => $secret, %more)->wait_for_start('listening');
}

my $receiver = receiver();

# Enqueues an event of an order, and returns its webhook-id.
sub enqueue
{
	my ($what, $order, $item) = @_;
	my $position = sql("SELECT outbox_enqueue('order.$what', '{\"order\": $order, \"item\": \"$item\", \"quantity\": 1}', key => 'order-$order')");
	return webhook_id($node, $position);
}

sub is_delivered
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, 'SELECT position = last_value AND waiting + parked = 0'
		  . ' FROM outbox_subscriptions, idempotency_internal.outbox_position_seq', $what);
}

sub parcels
{
	my ($order) = @_;
	return sql("SELECT count(*) FROM parcels WHERE order_id = $order", 'shipping');
}

sub signed
{
	my ($with, $id, $at, $body) = @_;
	my $signature = sql("SELECT outbox_signature('$with', '$id', $at, '$body')");
	return ('webhook-id' => $id, 'webhook-timestamp' => $at, 'webhook-signature' => $signature);
}

# --- without faults

my $id = enqueue('placed', 1, 'hat');
is($receiver->line($id), "$id order.placed claimed", 'an event is taken');
is(parcels(1), '1', 'and has its effect');
is_delivered('its sender knows');
$id = enqueue('renamed', 1, 'cap');
is($receiver->line($id), "$id order.renamed claimed", 'an event of no interest is taken as well');

# --- requests of other senders

my $body = '{"type":"order.placed","timestamp":"2026-01-01T00:00:00Z","data":{"order": 2, "item": "hat", "quantity": 1}}';
my $other = sql('SELECT outbox_secret_generate()');
is(post_to($url, $body), 401, 'what is not signed is refused');
is(post_to($url, $body, signed($other, 'msg_1', time, $body)), 401, 'what another secret has signed, too');
is(post_to($url, $body, signed($secret, 'msg_1', time - 600, $body)), 401, 'and what is old');
is(post_to($url, "$body ", signed($secret, 'msg_1', time, $body)), 401, 'or was changed on the way');
is(parcels(2), '0', 'nothing was done');
is(post_to($url, $body, signed($secret, 'msg_1', time, $body)), 204, 'what is signed is taken');
is(post_to($url, $body, signed($secret, 'msg_1', time, $body)), 204, 'and taken for a repetition');
is(post_to($url, "$body ", signed($secret, 'msg_1', time, "$body ")), 422, 'but not if it is another event');
is(parcels(2), '1', 'there is one effect');

# --- an error: tried again, in order

sql(q(ALTER TABLE parcels ADD CONSTRAINT broken CHECK (item <> 'scarf')), 'shipping');
my $placed = enqueue('placed', 3, 'scarf');
my $cancelled = enqueue('cancelled', 3, 'scarf');
$id = enqueue('placed', 4, 'hat');
is($receiver->line($id), "$id order.placed claimed", 'while an event fails, others are taken');
wait_until($node, 'SELECT waiting = 1 AND parked = 1 AND last_status = 500 FROM outbox_subscriptions',
	'but not the next one of its key');
sql('ALTER TABLE parcels DROP CONSTRAINT broken', 'shipping');
is_delivered('once it is mended, both are delivered');
is($receiver->line($cancelled), "$cancelled order.cancelled claimed", 'the later one also claimed its id');
is(parcels(3), '0', 'after the one before it');

# --- an answer that comes too late

my $session = session($node, 'shipping');
$session->query_safe('BEGIN; LOCK TABLE parcels IN SHARE MODE');
$id = enqueue('placed', 5, 'hat');
wait_for_lock($node, 'INSERT INTO parcels', 'an event takes long');
wait_for_lock($node, 'idem_claim', 'its sender does not wait, and the copy that it sends waits for the first one');
$session->query_safe('COMMIT');
# Two sessions end with the one commit; their messages come in any order.
is(join(', ', sort map { $receiver->line($id) } 1 .. 2), "$id order.placed claimed, $id order.placed completed",
	'one of them does it, and the other learns that');
is_delivered('so that its sender knows');
is(parcels(5), '1', 'there is one effect');
$session->quit;

# --- an answer that gets lost

$receiver->stop;
$receiver = receiver(NODE_ARGUMENTS => [ '--require', "$FindBin::RealBin/../programs/never_answer.js" ]);
$id = enqueue('placed', 6, 'hat');
is($receiver->line($id), "$id order.placed claimed", 'an event is taken');
is($receiver->line('not answered:'), 'not answered: 204', 'and not answered');
$receiver->crash;
$receiver = receiver();
is($receiver->line($id), "$id order.placed completed", 'after a crash it comes again');
is_delivered('so that its sender knows');
is(parcels(6), '1', 'there is one effect');

# --- a dead letter

sql(q(ALTER TABLE parcels ADD CONSTRAINT broken CHECK (item <> 'scarf')), 'shipping');
$placed = enqueue('placed', 7, 'scarf');
wait_until($node, 'SELECT dead = 1 FROM outbox_subscriptions', 'an event that fails for long is dead');
sql('ALTER TABLE parcels DROP CONSTRAINT broken', 'shipping');
is(sql("SELECT outbox_redrive('shipping')"), '1', 'it can be sent again');
is($receiver->line($placed), "$placed order.placed claimed", 'and is then taken');
is(parcels(7), '1', 'once');

done_testing();
