# After a failure, the events of a key that were parked behind it are sent
# faster than new ones come, in order.  If this fails, a key with much traffic
# never recovers: its events are parked for good.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant {
	PARKED => 3000,
	PER_SECOND => 150,
	REDRIVEN => 5000,
	DENSE_S => 20,
};

my $receiver = Receiver->start;
my $node = start_server('busy_key');

# Enqueues events of one key until it is told to stop, each in its own
# transaction.
sql(<<'EOF');
CREATE SEQUENCE number;
CREATE FUNCTION enqueue_next() RETURNS bigint LANGUAGE sql AS
	$$ SELECT outbox_enqueue('busy', jsonb_build_object('key', 'k', 'n', nextval('number')), key => 'k') $$;
CREATE TABLE stopped ();
CREATE PROCEDURE traffic(per_second integer) LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM stopped) LOOP
		PERFORM enqueue_next();
		COMMIT;
		PERFORM pg_sleep(1.0 / per_second - 0.0005);
	END LOOP;
END
$$
EOF

# --- one key fails, with many events behind it, and its traffic goes on

$receiver->switch('busy', 'fail');
# On a slow machine it fails for some time.
my $schedule = join(',', '0 s', ('300 ms') x 60, '1 h');
subscribe($node, $receiver, '/switch/busy', topics => "'{busy}'", retry_schedule => "'{$schedule}'");
sql('SELECT count(enqueue_next()) FROM generate_series(1, ' . PARKED . ')');
wait_until($node, 'SELECT parked = ' . (PARKED - 1) . " FROM outbox_subscriptions WHERE name = 'busy'",
	'events are parked behind one that fails');
my $traffic = session($node);
$traffic->query_until(qr/begun/, '\echo begun' . "\nCALL traffic(" . PER_SECOND . ");\n");
$receiver->switch('busy', 'ok');
wait_until($node, "SELECT parked + waiting = 0 FROM outbox_subscriptions WHERE name = 'busy'",
	'none is left, while new events come');
sub stop_traffic
{
	sql('INSERT INTO stopped DEFAULT VALUES');
	$traffic->query_safe('SELECT 1');
	return;
}

stop_traffic();
my $last = sql('SELECT last_value FROM number');
$receiver->wait_for('busy', events => $last);
wait_until($node, "SELECT delivered = $last AND waiting + parked + dead = 0 FROM outbox_subscriptions WHERE name = 'busy'",
	'all are delivered');
is($receiver->overtakings('busy'), 0, 'in order');

# --- so many new events that each pass finds some

sql(q(SELECT outbox_unsubscribe('busy'); TRUNCATE stopped));
$receiver->switch('dense', 'fail');
subscribe($node, $receiver, '/switch/dense', topics => "'{busy}'", retry_schedule => "'{0 s,2 s}'");
$traffic->query_until(qr/begun/, '\echo begun' . "\nCALL traffic(1000000);\n");
$receiver->wait_for('dense', requests => 1);
$receiver->switch('dense', 'ok');
$receiver->wait_for('dense', events => 100, DENSE_S);
stop_traffic();
sql(q(SELECT outbox_unsubscribe('dense')));
$traffic->quit;

# --- an event in the middle of the chain fails

subscribe($node, $receiver, '/told/middle', topics => "'{middle}'", retry_schedule => "'{0 s,100 ms,100 ms}'");
sql(q(
	SELECT count(outbox_enqueue('middle', jsonb_build_object('key', 'k' || n % 3, 'n', n / 3, 'fail',
		CASE WHEN n < 3 THEN 1 WHEN n % 50 = 0 THEN 2 ELSE 0 END), key => 'k' || n % 3)) FROM generate_series(0, 299) n));
wait_until($node, "SELECT delivered = 300 AND waiting + parked + dead = 0 FROM outbox_subscriptions WHERE name = 'middle'",
	'all are delivered though some of them fail again');
is($receiver->overtakings('middle'), 0, 'in order, too');

# --- new events follow those that were parked

subscribe($node, $receiver, '/told/again', topics => "'{again}'", retry_schedule => "'{0 s,100 ms}'");

# Event 0 is dead, event 2 is on its way, and 3 to 200 are parked behind it.
sub park_behind_held
{
	my ($name) = @_;

	sql("SELECT count(outbox_enqueue('$name', jsonb_build_object('n', n, 'fail', greatest(2 - n, 0)) ||"
		  . q{ CASE n WHEN 2 THEN jsonb '{"hold": true}' ELSE '{}' END, key => 'k')) FROM generate_series(0, 200) n});
	$receiver->wait_for($name, requests => 5);
	wait_until($node, "SELECT waiting = 1 AND parked = 198 AND dead = 1 FROM outbox_subscriptions WHERE name = '$name'",
		'an event is on its way, and others are parked behind it');
	return;
}

park_behind_held('again');
sql(q{SELECT outbox_enqueue('again', '{"n": 201}', key => 'k'), outbox_enqueue('again', '{"n": -1}', key => 'other')});
$receiver->wait_for('again', requests => 6);
is(sql("SELECT waiting + parked FROM outbox_subscriptions WHERE name = 'again'"), '199', 'a new event is not parked');
$receiver->release('again');
wait_until($node, "SELECT delivered = 202 AND waiting + parked = 0 FROM outbox_subscriptions WHERE name = 'again'",
	'all are delivered');
is($receiver->numbers('again'), join(' ', 0, 0, 1, 1, 2, -1, 3 .. 201), 'in order');

# --- a dead letter that is redriven waits for later events of its key that are
# --- on their way

subscribe($node, $receiver, '/told/redriven', topics => "'{redriven}'", retry_schedule => "'{0 s,100 ms}'");
park_behind_held('redriven');
is(sql("SELECT outbox_redrive('redriven')"), '1', 'a dead letter is redriven');
$receiver->release('redriven');
wait_until($node, "SELECT delivered = 201 AND waiting + parked = 0 FROM outbox_subscriptions WHERE name = 'redriven'",
	'all are delivered');
is($receiver->numbers('redriven'), join(' ', 0, 0, 1, 1, 2 .. 200, 0), 'in order, and then the one that was dead');

# --- a new event that fails behind a retry keeps its place, while others that
# --- were retried with it are still on their way

subscribe($node, $receiver, '/told/behind', topics => "'{behind}'", retry_schedule => "'{0 s,1 h,1 h}'");
sql(q{SELECT outbox_enqueue('behind', '{"n": 1, "fail": 1}', key => 'a'),
	outbox_enqueue('behind', '{"n": -1, "fail": 1, "hold": 2}', key => 'b')});
wait_until($node, "SELECT waiting = 2 FROM outbox_subscriptions WHERE name = 'behind'", 'two events wait');
sql("SELECT outbox_retry('behind')");
$receiver->wait_for('behind', requests => 4);
wait_until($node, "SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'behind'", 'one is accepted');
sql(q{SELECT outbox_enqueue('behind', '{"n": 2, "fail": 1}', key => 'a')});
wait_until($node, "SELECT waiting = 2 FROM outbox_subscriptions WHERE name = 'behind'", 'the next of its key fails');
sql(q{SELECT outbox_enqueue('behind', '{"n": 3}', key => 'a')});
wait_until($node, "SELECT parked = 1 FROM outbox_subscriptions WHERE name = 'behind'", 'one more is parked');
$receiver->release('behind');
sql("SELECT outbox_retry('behind')");
wait_until($node, "SELECT delivered = 4 FROM outbox_subscriptions WHERE name = 'behind'", 'all are delivered');
is(join(' ', grep { $_ > 0 } split(/ /, $receiver->numbers('behind'))), '1 1 2 2 3', 'in order');

# --- many dead letters are redriven

$receiver->switch('dead', 'refuse');
subscribe($node, $receiver, '/switch/dead', topics => "'{dead}'", retry_schedule => "'{0 s}'", max_in_flight => 256);
sql("SELECT count(outbox_enqueue('dead', jsonb_build_object('key', 'k' || n % 100, 'n', n / 100), key => 'k' || n % 100))"
	  . ' FROM generate_series(0, ' . (REDRIVEN - 1) . ') n');
wait_until($node, 'SELECT dead = ' . REDRIVEN . " FROM outbox_subscriptions WHERE name = 'dead'", 'events are dead');
$receiver->switch('dead', 'ok');
is(sql("SELECT outbox_redrive('dead')"), REDRIVEN, 'they are redriven');
wait_until($node, "SELECT dead + waiting + parked = 0 FROM outbox_subscriptions WHERE name = 'dead'", 'all are delivered then');

done_testing();
