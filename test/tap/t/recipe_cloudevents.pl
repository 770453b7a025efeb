# The receiver of CloudEvents: an event counts once, and a late one does not
# undo a newer one.  If this fails, its copy of the addresses is wrong.
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

my $node = start_server('crm', internal_path => 0);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $url = "http://127.0.0.1:$port/";
my $schedule = '0 s' . ',100 ms' x 99;

sql('CREATE DATABASE copy');
prepare_recipe($node, 'cloudevents.sql', 'copy');
my $secret = sql("SELECT outbox_subscribe('copy', '$url',"
	  . " format => 'cloudevents', ordered => false, retry_schedule => '{$schedule}')");

sub receiver
{
	my (%more) = @_;
	return start_recipe('cloudevents.js', as_shop($node, 'copy'),
		PORT => $port, WEBHOOK_SECRET => $secret, %more)->wait_for_start('listening');
}

my $receiver = receiver();
my $identity = sql(q(SELECT replace(identity::text, '-', '') FROM idempotency_internal.outbox_home));

# Announces a move, and returns the id of the event.
sub move
{
	my ($customer, $city) = @_;
	my $position = sql("SELECT outbox_enqueue('customer.moved', '{\"city\": \"$city\"}', key => '$customer')");
	return webhook_id($node, $position);
}

sub moves
{
	my ($customer) = @_;
	return sql("SELECT string_agg(city, ' ' ORDER BY id) FROM moves WHERE customer = '$customer'", 'copy');
}

sub address
{
	my ($customer) = @_;
	return sql("SELECT city FROM addresses WHERE customer = '$customer'", 'copy');
}

# --- without faults

my $id = move('Zoë %', 'Łódź');
is($receiver->line($id), "$id customer.moved claimed", 'an event is taken');
is(address('Zoë %'), 'Łódź', 'with all its characters');
is(sql('SELECT DISTINCT scope FROM idem_key', 'copy'), "/idempotency/$identity", 'it is remembered by its source and id');
$id = move('Zoë %', 'Brno');
is($receiver->line($id), "$id customer.moved claimed", 'and so is another');
is(address('Zoë %'), 'Brno', 'which is newer');

# --- a late event

sql(q(ALTER TABLE moves ADD CONSTRAINT broken CHECK (city <> 'Ghent')), 'copy');
my $late = move('bob', 'Ghent');
wait_until($node, 'SELECT waiting = 1 FROM outbox_subscriptions', 'an event fails');
$id = move('bob', 'Rome');
is($receiver->line($id), "$id customer.moved claimed", 'without an order, the next one of its key does not wait');
sql('ALTER TABLE moves DROP CONSTRAINT broken', 'copy');
is($receiver->line($late), "$late customer.moved claimed", 'the first one comes late');
is(moves('bob'), 'Rome Ghent', 'and counts');
is(address('bob'), 'Rome', 'but does not undo the newer one');

# --- several events in a request

sql(q(ALTER TABLE moves ADD CONSTRAINT broken CHECK (city <> 'Graz')), 'copy');
sql(q(SELECT outbox_alter('copy', batch => 10); SELECT outbox_pause('copy')));
wait_for_pass($node);
my @ids = map { move("Zoë % $_", $_) } qw(Bern Graz Riga);
sql(q(SELECT outbox_resume('copy')));
is($receiver->line($ids[0]), "$ids[0] customer.moved claimed", 'the first of three is taken');
is($receiver->line($ids[0]), "$ids[0] customer.moved completed", 'and recognised when it comes again without the others');
is($receiver->line($ids[2]), "$ids[2] customer.moved claimed", 'the one after a broken one is taken');
sql('ALTER TABLE moves DROP CONSTRAINT broken', 'copy');
is($receiver->line($ids[1]), "$ids[1] customer.moved claimed", 'and so is that one at last');
is(join(' ', map { address("Zoë % $_") } qw(Bern Graz Riga)), 'Bern Graz Riga', 'each counts');
wait_until($node, 'SELECT waiting = 0 AND lag_events = 0 FROM outbox_subscriptions', 'all are delivered');
sql(q(SELECT outbox_alter('copy', batch => 1)));

# --- an answer that gets lost

$receiver->stop;
$receiver = receiver(NODE_ARGUMENTS => [ '--require', "$FindBin::RealBin/../programs/never_answer.js" ]);
$id = move('carl', 'Oslo');
is($receiver->line('not answered:'), 'not answered: 204', 'an event is taken and not answered');
$receiver->crash;
$receiver = receiver();
is($receiver->line($id), "$id customer.moved completed", 'after a crash it comes again');
is(moves('carl'), 'Oslo', 'and has no further effect');

# --- events of other senders

my %event = ('content-type' => 'application/json', 'ce-specversion' => '1.0', 'ce-id' => '1',
	'ce-source' => '/other', 'ce-type' => 'customer.moved', 'ce-subject' => 'dora');
is(post_to($url, '{"city": "Nice"}', %event), 400, 'an event that is not signed is refused');
is(moves('dora'), '', 'and does not count');

done_testing();
