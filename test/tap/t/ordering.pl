# Events of one key arrive one at a time and in the order of the log, however
# many of them fail, and delay no other key.  If this fails, a receiver gets
# "cancelled" before "placed".

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('ordering');

# --- many keys, more events than fit into a batch, some fail

subscribe($node, $receiver, '/told/keys', topics => "'{keys}'",
	retry_schedule => "'{0 s,50 ms,50 ms,50 ms}'");
sql(q(
	SELECT count(outbox_enqueue('keys',
		jsonb_build_object('key', 'k' || k, 'n', n, 'fail', CASE (n * 7 + k) % 40 WHEN 0 THEN 2 WHEN 20 THEN 1 ELSE 0 END),
		key => 'k' || k))
	FROM generate_series(1, 120) n, generate_series(1, 10) k
	WHERE k <= 10));
$receiver->wait_for('keys', requests => 1200);
wait_until($node, 'SELECT position = last_value AND waiting = 0 AND parked = 0'
	  . ' FROM outbox_subscriptions, outbox_position_seq', 'all is delivered in the end');
my @requests = $receiver->requests('keys', 'status');
is(scalar(grep { $_->{status} == 200 } @requests), 1200, 'each event is accepted once');
cmp_ok(scalar(@requests), '>', 1200, 'though some had failed');
is($receiver->overtakings('keys'), 0, 'no event overtakes another of its key');

# --- the same while the relay is killed and the subscription is paused
# sometimes

subscribe($node, $receiver, '/told/chaos', topics => "'{chaos}'",
	retry_schedule => "'{0 s,20 ms,20 ms,20 ms}'");
for my $round (0 .. 5)
{
	sql(qq(
		SELECT count(outbox_enqueue('chaos',
			jsonb_build_object('key', 'k' || k, 'n', n, 'fail', (n + k) % 11 / 9), key => 'k' || k))
		FROM generate_series($round * 20 + 1, $round * 20 + 20) n, generate_series(1, 5) k));
	$receiver->wait_for('chaos', requests => 100 * $round + 30);
	sql("SELECT outbox_pause('chaos')") if $round % 3 == 0;
	terminate_worker($node, 'relay') if $round % 3 == 1;
	sql("SELECT outbox_resume('chaos')") if $round % 3 != 1;
}
$receiver->wait_for('chaos', events => 600);
wait_until($node, 'SELECT position = last_value AND waiting = 0 AND parked = 0'
	  . " FROM outbox_subscriptions, outbox_position_seq WHERE name = 'chaos'", 'all of that, too');
is($receiver->overtakings('chaos'), 0, 'no event overtakes another of its key');

# --- a failing key holds up no other

subscribe($node, $receiver, '/told/bad', topics => "'{bad}'",
	retry_schedule => "'{0 s,300 ms,300 ms,300 ms}'");
sql(q(
	SELECT outbox_enqueue('bad', '{"key": "a", "n": 1, "fail": 3}', key => 'a');
	SELECT outbox_enqueue('bad', '{"key": "a", "n": 2}', key => 'a');
	SELECT outbox_enqueue('bad', '{"key": "a", "n": 3}', key => 'a')));
wait_until($node, "SELECT parked = 2 FROM outbox_subscriptions WHERE name = 'bad'",
	'events behind a failing one of their key are parked');
sql(q(
	SELECT outbox_enqueue('bad', '{"key": "b", "n": 1}', key => 'b');
	SELECT outbox_enqueue('bad', '{"key": "-", "n": 1}');
	SELECT outbox_enqueue('bad', '{"key": "a", "n": 4}', key => 'a')));
terminate_worker($node, 'relay');
$receiver->wait_for('bad', requests => 9);
is($receiver->overtakings('bad'), 0, 'parked events wait for their turn, even if the relay dies');
@requests = $receiver->requests('bad', 'data');
my ($last_of_a) = grep { $requests[$_]{data}{key} eq 'a' && $requests[$_]{data}{n} == 4 } 0 .. $#requests;
is($last_of_a, $#requests, 'events of another key, or without one, do not wait');
wait_until($node, 'SELECT count(*) = 0 FROM outbox_delivery', 'no row is left of them');

# --- events parked in one batch do not overtake those parked in the preceding
# one

subscribe($node, $receiver, '/told/batches', topics => "'{batches}'",
	retry_schedule => "'{0 s,300 ms,300 ms}'");
sql(q(
	SELECT outbox_enqueue('batches', '{"key": "slow", "n": 1, "hold": true}', key => 'slow');
	SELECT outbox_enqueue('batches', '{"key": "k", "n": 1, "fail": 1}', key => 'k');
	SELECT outbox_enqueue('batches', '{"key": "k", "n": 2}', key => 'k')));
$receiver->wait_for('batches', requests => 2);
sql(q(
	SELECT outbox_enqueue('batches', '{"key": "other", "n": 1, "fail": 1}', key => 'other');
	SELECT outbox_enqueue('batches', '{"key": "k", "n": 3}', key => 'k')));
$receiver->wait_for('batches', requests => 5);
wait_for_pass($node);
$receiver->release('batches');
$receiver->wait_for('batches', events => 5);
is($receiver->overtakings('batches'), 0, 'nothing is overtaken by what was read later');
wait_until($node, 'SELECT count(*) = 0 FROM outbox_delivery', 'no row is left of that');

# --- after a dead letter the next event of its key is sent

subscribe($node, $receiver, '/told/mortal', topics => "'{mortal}'",
	retry_schedule => "'{0 s,100 ms}'");
sql(q(
	SELECT count(outbox_enqueue('mortal',
		jsonb_build_object('key', 'm', 'n', n, 'fail', CASE WHEN n <= 2 THEN 3 ELSE 0 END), key => 'm'))
	FROM generate_series(1, 5) n));
$receiver->wait_for('mortal', requests => 7);
is($receiver->numbers('mortal'), '1 1 2 2 3 4 5',
	'after an event is dead the next of its key is sent');
wait_until($node, 'SELECT count(*) = 2 FROM outbox_dead', 'the dead ones are kept');

sql("SELECT outbox_redrive('mortal')");
$receiver->wait_for('mortal', requests => 11);
is($receiver->numbers('mortal'), '1 1 2 2 3 4 5 1 1 2 2',
	'redriven events of one key go one after another, too');

# --- without order

subscribe($node, $receiver, '/told/free', topics => "'{free}'", ordered => 'false',
	retry_schedule => "'{0 s,1 h}'");
sql(q(
	SELECT outbox_enqueue('free', '{"n": 1, "fail": 1}', key => 'f');
	SELECT outbox_enqueue('free', '{"n": 2}', key => 'f')));
$receiver->wait_for('free', events => 2);
wait_until($node, "SELECT waiting = 1 AND parked = 0 FROM outbox_subscriptions WHERE name = 'free'",
	'with ordered => false nothing is parked');

done_testing();
