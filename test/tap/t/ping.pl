# A ping reaches one subscription, once, as an event would.  If this fails,
# operators cannot test a receiver, or others get their test events.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('ping');

sub ping
{
	my ($name) = @_;
	return sql("SELECT outbox_ping('$name')");
}

# Waits until relays have read the log to its end, and sent all that is due.
sub wait_for_all
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT bool_and(lag_events = 0 AND waiting = 0 AND in_flight = 0) FROM outbox_subscriptions", $what);
}

sub types
{
	my ($name) = @_;
	return join(' ', map { $_->{type} } $receiver->requests($name));
}

# --- one of several

subscribe($node, $receiver, '/ok/one', topics => "'{shop}'");
subscribe($node, $receiver, '/ok/all');
subscribe($node, $receiver, '/ok/own', topics => "'{outbox.*}'", format => "'cloudevents'");
subscribe($node, $receiver, '/ok/watch', topics => "'{*,outbox.ping}'");
my $position = ping('one');
ping('own');
enqueue_numbers($node, 'shop', 1);
$receiver->wait_for($_ => requests => 2) for qw(one);
$receiver->wait_for($_ => requests => 1) for qw(all own watch);
wait_for_all('all is delivered');
wait_for_pass($node);
is(join(' ', sort split(/ /, types('one'))), 'outbox.ping shop', 'the subscription gets its ping, though its topics do not match');
is(types('all'), 'shop', 'one to all topics gets no ping');
is(types('own'), 'outbox.ping', 'one whose topics match gets its own ping, once');
is(types('watch'), 'shop', 'and not that of others');
my ($request) = grep { $_->{type} eq 'outbox.ping' } $receiver->requests('one');
is($request->{verified}, 1, 'a ping is signed');
is_deeply($request->{data}, { subscription => 'one' }, 'and says what it is for');
is($request->{id}, sql("SELECT outbox_event_id($position)"), 'under the id of its position');
is(sql("SELECT delivered FROM outbox_subscriptions WHERE name = 'one'"), 2, 'it counts as delivered');

# Neither do they when the log is read again.
sql("SELECT outbox_replay(name, 1) FROM outbox_subscriptions");
$receiver->wait_for('one', requests => 3);
$receiver->wait_for($_ => requests => 2) for qw(all watch);
wait_for_all('the log is read again');
is(types('all'), 'shop shop', 'one to all topics gets no ping then');
is(types('own'), 'outbox.ping', 'and one whose topics match none again');

# --- transactions

my $session = session($node);
$session->query_safe(q(BEGIN; SELECT outbox_ping('one')));
sql(q(SELECT outbox_ping('all')));
$receiver->wait_for('all', requests => 3);
is(scalar($receiver->requests('one')), 3, 'a ping is not sent before the commit');
finish($session, 'ROLLBACK');
wait_for_pass($node);
is(scalar($receiver->requests('one')), 3, 'nor after a rollback');

# --- several partitions, and relays

alter_system('idempotency.relays', 2);
subscribe($node, $receiver, '/ok/wide', topics => "'{none}'", partitions => 8);
ping('wide') for 1 .. 16;
$receiver->wait_for('wide', events => 16);
wait_for_all('all of them are delivered');
is(scalar($receiver->requests('wide')), 16, 'each is sent once');
alter_system('idempotency.relays', 1);

# --- an endpoint that fails

$receiver->switch('fails', 'fail');
subscribe($node, $receiver, '/switch/fails', topics => "'{fails}'", retry_schedule => "'{0 s,2 h}'");
$position = ping('fails');
wait_until($node, "SELECT attempts = 1 AND state = 'waiting' AND last_status = 500 AND topic = 'outbox.ping'"
	  . " FROM outbox_deliveries WHERE subscription = 'fails' AND position = $position", 'a ping that fails waits for its retry');
$receiver->switch('fails', 'ok');
is(sql("SELECT outbox_retry('fails')"), 1, 'as an event does');
wait_for_all('and is delivered');
is(scalar($receiver->requests('fails')), 2, 'by the second attempt');

# While the endpoint is failing, a ping is the next probe.
$receiver->switch('fails', 'fail');
enqueue_numbers($node, 'fails', 1 .. 30);
wait_until($node, "SELECT state = 'failing' AND in_flight = 0 FROM outbox_subscriptions WHERE name = 'fails'", 'the endpoint is failing');
$receiver->switch('fails', 'ok');
ping('fails');
wait_for_all('the ping and the events are delivered');
is(scalar(grep { $_->{type} eq 'outbox.ping' && $_->{status} == 200 } $receiver->requests('fails')), 2, 'each ping once');

# --- what cannot be pinged

sql(q(SELECT outbox_pause('one')));
is(error_code($node, 'postgres', q(SELECT outbox_ping('one'))), '55000', 'a paused subscription cannot be pinged');
subscribe($node, $receiver, '/gone/gone', topics => "'{none}'");
ping('gone');
wait_until($node, "SELECT state = 'disabled' FROM outbox_subscriptions WHERE name = 'gone'", 'an answer 410 to a ping disables the subscription');
is(error_code($node, 'postgres', q(SELECT outbox_ping('gone'))), '55000', 'which cannot be pinged then');

# --- the log is truncated as before

sql(q(SELECT outbox_resume('one'); SELECT outbox_unsubscribe('gone'); SELECT outbox_unsubscribe('fails')));
ping('one') for 1 .. 3;
wait_for_all('the last pings are delivered');
alter_system('idempotency.outbox_retention', "'0'");
wait_until($node, 'SELECT count(*) = 0 FROM outbox_log', 'a segment with pings is truncated');
is(sql("SELECT max(lost) FROM outbox_subscriptions"), 0, 'and nothing is lost');
ok(!$node->log_contains(qr/stuck/), 'no subscription was stuck');

$receiver->stop;
done_testing();
