# An endpoint that fails as a whole gets only a probe from time to time, and
# continues from its position when it works again.  If this fails, an endpoint
# that is down fills the database with rows, or its events become dead letters.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time usleep);

my $receiver = Receiver->start;
my $node = start_server('breaker');

sub enqueue
{
	my ($topic, $from, $to, $fail) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('key', 'k' || n % 50, 'n', n / 50 + 1, 'fail', $fail),"
		  . " key => 'k' || n % 50)) FROM generate_series($from, $to) n");
	return;
}

use constant LOOKS => 80;	# over more time than the wait for the next probe

# How many passes of the relay are seen in that many looks.
sub passes
{
	my %started;

	for (1 .. LOOKS)
	{
		$started{ sql("SELECT query_start FROM pg_stat_activity WHERE backend_type = 'idempotency relay'") } = 1;
		usleep(50_000);
	}
	return scalar(keys %started);
}

my $rows = "SELECT waiting + parked FROM outbox_subscriptions WHERE name = 'shop'";

# --- it fails

$receiver->switch('shop', 'fail');
subscribe($node, $receiver, '/switch/shop', topics => "'{both}'", retry_schedule => "'{0 s,10 s}'");
subscribe($node, $receiver, '/ok/other', topics => "'{both}'");
enqueue('both', 0, 599, 0);
$receiver->wait_for('other', events => 600);
wait_until($node, "SELECT state = 'failing' AND failing_since IS NOT NULL"
	  . " AND last_status = 500 FROM outbox_subscriptions WHERE name = 'shop'", 'the endpoint fails');
ok($node->log_contains(qr/LOG:  the endpoint of subscription "shop" fails\n.*DETAIL:  20 different requests in a row have failed/),
	'the log has a line about it');
my $before = sql($rows);
cmp_ok($before, '<=', 60, 'few rows are made of its events');
enqueue('both', 600, 1099, 0);
$receiver->wait_for('other', events => 1100);
wait_for_pass($node);
cmp_ok(sql($rows), '<=', $before + 3, 'and no more, however many events come');
cmp_ok(sql("SELECT lag_events FROM outbox_subscriptions WHERE name = 'shop'"), '>=', 900, 'they stay in the log');
is(sql("SELECT state, dead, waiting FROM outbox_subscriptions WHERE name = 'other'"), 'active|0|0',
	'another endpoint does not notice');

# --- it is probed, also after a restart

my $requests = $receiver->requests('shop');
$receiver->wait_for('shop', requests => $requests + 2);
cmp_ok(scalar($receiver->requests('shop')), '<=', $requests + 3, 'it is probed by one event at a time');
$node->restart;
is(sql("SELECT state FROM outbox_subscriptions WHERE name = 'shop'"), 'failing', 'a restart does not change that');
$requests = $receiver->requests('shop');
my $start = time();
wait_for_workers($node);
wait_for_pass($node);
# There is at most a probe in a second.
cmp_ok(scalar($receiver->requests('shop')), '<=', $requests + 1 + int(time() - $start), 'nor does it send a flood');
$receiver->wait_for('shop', requests => $requests + 1);

# --- it works again

$receiver->switch('shop', 'ok');
wait_until($node, "SELECT state = 'active' AND failing_since IS NULL AND waiting = 0 AND parked = 0"
	  . " AND position = last_value FROM outbox_subscriptions, outbox_position_seq WHERE name = 'shop'",
	'once it works, all is delivered');
ok($node->log_contains(qr/LOG:  the endpoint of subscription "shop" works again/), 'the log says so');
is(scalar(keys %{ { map { $_->{id} => 1 } grep { $_->{status} == 200 } $receiver->requests('shop', qw(id status)) } }), 1100,
	'nothing is lost');
is(sql('SELECT count(*) FROM outbox_dead'), '0', 'nothing has died');
is($receiver->overtakings('shop'), 0, 'each key is in order');

# --- events that are refused do not make an endpoint fail

subscribe($node, $receiver, '/told/picky', topics => "'{picky}'", retry_schedule => "'{0 s,1 ms,1 ms}'");
sql(q(SELECT count(outbox_enqueue('picky', jsonb_build_object('n', n, 'fail', CASE n % 40 WHEN 0 THEN 3 ELSE 0 END)))
	FROM generate_series(1, 400) n));
wait_until($node, "SELECT waiting = 0 AND parked = 0 AND dead = 10 AND position = last_value"
	  . " FROM outbox_subscriptions, outbox_position_seq WHERE name = 'picky'", 'poisonous events die');
ok(!$node->log_contains(qr/the endpoint of subscription "picky" fails/), 'their endpoint does not count as failing');

subscribe($node, $receiver, '/fail/single', topics => "'{single}'",
	retry_schedule => "ARRAY[interval '0'] || array_fill(interval '1 ms', '{19}')");
enqueue('single', 1, 1, 0);
wait_until($node, "SELECT dead = 1 FROM outbox_subscriptions WHERE name = 'single'", 'an event is tried twenty times');
ok(!$node->log_contains(qr/the endpoint of subscription "single" fails/), 'nor does one event make it fail');
is(sql("SELECT count(*), max(attempt) FROM outbox_attempts WHERE subscription = 'single'"), '20|20',
	'all attempts can be seen');

subscribe($node, $receiver, '/refuse/strict', topics => "'{strict}'", retry_schedule => "'{0 s}'");
sql("SELECT count(outbox_enqueue('strict', '{}')) FROM generate_series(1, 100)");
wait_until($node, "SELECT dead = 100 AND state = 'active' FROM outbox_subscriptions WHERE name = 'strict'",
	'events that an endpoint answers 422 to die, however many in a row');

# --- probes without an effect on their event

$receiver->switch('parts', 'fail');
subscribe($node, $receiver, '/switch/parts', topics => "'{parts}'", partitions => 4, retry_schedule => "'{0 s,1 h}'");
sql(q(
	SELECT outbox_enqueue('parts', '{"n": 0}', key => 'later', deliver_at => now() + interval '1 day');
	SELECT count(outbox_enqueue('parts', jsonb_build_object('n', n))) FROM generate_series(1, 100) n));
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'parts'", 'an endpoint of partitions fails');
sql("SELECT outbox_discard('parts'); DELETE FROM outbox_delivery WHERE partition < 3 AND last_at IS NOT NULL");
sql("UPDATE outbox_partition SET position = (SELECT last_value FROM outbox_position_seq) WHERE number < 3");
$requests = $receiver->requests('parts');
$receiver->wait_for('parts', requests => $requests + 3);
is(sql("SELECT state FROM outbox_subscriptions WHERE name = 'parts'"), 'failing',
	'a partition that has nothing to send does not end that');
is(scalar(grep { $_->{n} == 0 } $receiver->requests('parts', 'data.n')), 0,
	'an event whose time is yet to come is no probe');
$receiver->switch('parts', 'ok');
sql("SELECT outbox_alter('parts', timeout => '10 s')");
wait_until($node, "SELECT state = 'active' AND waiting = 1 FROM outbox_subscriptions WHERE name = 'parts'",
	'once it works, all but that one is delivered');

# --- no event for a probe

$receiver->switch('empty', 'fail');
subscribe($node, $receiver, '/switch/empty', topics => "'{empty}'", partitions => 4, retry_schedule => "'{0 s}'");
sql("SELECT count(outbox_enqueue('empty', '{}')) FROM generate_series(1, 100)");
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'empty'", 'an endpoint all of whose events die');
sql("UPDATE outbox_partition SET position = (SELECT last_value FROM outbox_position_seq)"
	  . " WHERE subscription = (SELECT id FROM outbox_subscription WHERE name = 'empty')");
sql(q(DELETE FROM outbox_delivery WHERE subscription = (SELECT id FROM outbox_subscription WHERE name = 'empty')));
cmp_ok(passes(), '<=', LOOKS / 4, 'a relay that looks for a probe in vain sleeps');
$receiver->switch('empty', 'ok');
sql(q(SELECT outbox_enqueue('empty', '{}')));
wait_until($node, "SELECT state = 'active' AND lag_events = 0 FROM outbox_subscriptions WHERE name = 'empty'",
	'the next event that comes is its probe');

# --- the subscription is locked by another session

subscribe($node, $receiver, '/fail/locked', topics => "'{locked}'", retry_schedule => "'{0 s,1 h}'");
my $locker = session($node);
$locker->query_safe('BEGIN');
$locker->query_safe("SELECT FROM outbox_subscription WHERE name = 'locked' FOR UPDATE");
sql("SELECT count(outbox_enqueue('locked', '{}')) FROM generate_series(1, 100)");
$receiver->wait_for('locked', requests => 20);
wait_for_pass($node);
is(sql("SELECT state FROM outbox_subscriptions WHERE name = 'locked'"), 'active',
	'that an endpoint fails is not written down while its subscription is locked');
$locker->query_safe('COMMIT');
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'locked'", 'but then');

# --- a subscription is altered before that

subscribe($node, $receiver, '/fail/moved', topics => "'{moved}'", retry_schedule => "'{0 s,1 h}'");
my $url = $receiver->url('/ok/moved');
$locker->query_safe("BEGIN; SELECT outbox_alter('moved', url => '$url')");
sql("SELECT count(outbox_enqueue('moved', '{}')) FROM generate_series(1, 100)");
$receiver->wait_for('moved', requests => 20);
wait_for_pass($node);
$locker->query_safe('COMMIT');
wait_until($node, "SELECT delivered >= 80 - 8 FROM outbox_subscriptions WHERE name = 'moved'", 'the other URL gets all that was not sent');
ok(!$node->log_contains(qr/the endpoint of subscription "moved" fails/), 'failures of the one before do not count');

# --- one of its partitions is

$receiver->switch('half', 'fail');
subscribe($node, $receiver, '/switch/half', topics => "'{half}'", partitions => 2, retry_schedule => "'{0 s,1 h}'");
my $first = "subscription = (SELECT id FROM outbox_subscription WHERE name = 'half') AND number = 0";
$locker->query_safe("BEGIN; SELECT FROM outbox_partition WHERE $first FOR UPDATE");
sql("SELECT count(outbox_enqueue('half', '{}')) FROM generate_series(1, 100)");
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'half'",
	'another partition records that the endpoint fails');
$receiver->switch('half', 'ok');
wait_until($node, "SELECT state = 'active' AND delivered > 20 FROM outbox_subscriptions WHERE name = 'half'",
	'and probes it, and goes on when it works again');
is(sql("SELECT delivered FROM outbox_partition WHERE $first"), '0', 'while the first one is locked');
$locker->query_safe('COMMIT');
wait_until($node, "SELECT lag_events = 0 FROM outbox_subscriptions WHERE name = 'half'", 'and then it goes on, too');
$locker->quit;

done_testing();
