# When a subscription gets no more events, those that were read for it are
# given back: requests in flight are waited for, and all other events are read
# again later.  If this fails, a pause loses events, or sends them twice or out
# of order.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('given_back');

# Enqueues the numbers in one transaction.  Those of @$held are not answered at
# first; the first two have the same key.
sub enqueue
{
	my ($topic, $last, $held) = @_;
	return "SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n, 'hold', n = ANY ('{"
	  . join(',', @$held) . "}')), key => CASE WHEN n < 3 THEN 'k' END)) FROM generate_series(1, $last) n;";
}

# Pauses the subscription while two requests are in flight, and resumes it when
# they have ended and everything is recorded.
sub pause_and_resume
{
	my ($name, $delivered) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_pass($node);
	sql("SELECT outbox_pause('$name')");
	wait_for_pass($node);
	$receiver->release($name);
	wait_until($node, "SELECT delivered = $delivered AND in_flight = 0 FROM outbox_subscriptions WHERE name = '$name'",
		'what was out counts');
	wait_for_pass($node);
	is(scalar($receiver->requests($name)), $delivered, 'and nothing else is sent');
	sql("SELECT outbox_resume('$name')");
	return;
}

# --- more than one batch, and an event that has waited for one of its key

subscribe($node, $receiver, '/told/queue', topics => "'{queue}'", max_in_flight => 2);
sql(enqueue('queue', 1200, [ 5, 6 ]));
$receiver->wait_for('queue', requests => 5);
is($receiver->sorted_numbers('queue'), '1 3 4 5 6', 'an event waits for the one before it');
pause_and_resume('queue', 5);
$receiver->wait_for('queue', events => 1200);
wait_until($node, "SELECT delivered = 1200 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'queue'",
	'afterwards all are delivered');
is($receiver->sorted_numbers('queue'), join(' ', 1 .. 1200), 'each once');

# --- events that came one by one

subscribe($node, $receiver, '/told/single', topics => "'{single}'", max_in_flight => 1);
for my $n (1 .. 4)
{
	sql(enqueue('single', 1, [ 1 ])) if $n == 1;
	enqueue_numbers($node, 'single', $n) if $n > 1;
	wait_for_pass($node);
}
$receiver->wait_for('single', requests => 1);
pause_and_resume('single', 1);
$receiver->wait_for('single', events => 4);
wait_until($node, "SELECT delivered = 4 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'single'",
	'all of them are delivered');
is($receiver->numbers('single'), '1 2 3 4', 'each once, those that came alone');

# --- the receiver moves while requests are in flight and many events are read
# ahead

subscribe($node, $receiver, '/told/moved', topics => "'{moved}'", max_in_flight => 2);
sql(enqueue('moved', 1200, [ 5, 6 ]));
$receiver->wait_for('moved', requests => 5);
wait_for_pass($node);
sql("SELECT outbox_alter('moved', url => '" . $receiver->url('/ok/elsewhere') . "')");
wait_for_pass($node);
$receiver->release('moved');
$receiver->wait_for('elsewhere', events => 1195);
wait_until($node, "SELECT delivered = 1200 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'moved'",
	'all are delivered');
is($receiver->sorted_numbers('moved'), '1 3 4 5 6', 'nothing but what was out is finished at the old URL');
is($receiver->sorted_numbers('elsewhere'), join(' ', 2, 7 .. 1200), 'all else goes to the new one, once');

# --- events of a transaction that was passed while it was open

subscribe($node, $receiver, '/told/late', topics => "'{late}'", max_in_flight => 2);
my $late = session($node);
$late->query_safe('BEGIN');
$late->query_safe(enqueue('late', 30, [ 3, 4 ]));
enqueue_numbers($node, 'late', 31);
$receiver->wait_for('late', requests => 1);
$late->query_safe('COMMIT');
$receiver->wait_for('late', requests => 4);
like($receiver->numbers('late'), qr/^31 /, 'an open transaction is passed');
is($receiver->sorted_numbers('late'), '1 3 4 31', 'and comes later');
pause_and_resume('late', 4);
$receiver->wait_for('late', events => 31);
wait_until($node, "SELECT delivered = 31 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'late'",
	'afterwards all of its events are delivered');
is($receiver->sorted_numbers('late'), join(' ', 1 .. 31), 'each once');
$late->quit;

# --- a dead letter is redriven while a newer event of its key is in flight

subscribe($node, $receiver, '/told/again', topics => "'{again}'", retry_schedule => "'{0 s}'");
sql(q(SELECT outbox_enqueue('again', '{"n": 1, "fail": 1}', key => 'k')));
wait_until($node, "SELECT dead = 1 FROM outbox_subscriptions WHERE name = 'again'", 'an event is dead');
sql(q(SELECT outbox_enqueue('again', '{"n": 2, "hold": true}', key => 'k')));
$receiver->wait_for('again', requests => 2);
sql(q(SELECT outbox_redrive('again')));
wait_for_pass($node);
is($receiver->numbers('again'), '1 2', 'once redriven, it waits for what is out');
$receiver->release('again');
wait_until($node, "SELECT delivered = 2 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'again'", 'no longer');
is($receiver->numbers('again'), '1 2 1', 'and comes after it');

done_testing();
