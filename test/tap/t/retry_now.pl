# An operator tells that an endpoint works again; a producer asks for the id
# under which its event is sent.  If this fails, retries still wait for the
# schedule, an operator who is too early makes dead letters, scheduled events are
# sent too early, or the id is not the one that receivers get.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('retry_now');

sub ids
{
	return join("\n", sort map { $_->{id} } $receiver->requests(shift, 'id'));
}

# --- ids are returned before the first subscription

sql('CREATE TABLE told (id text)');
sql(q(INSERT INTO told SELECT outbox_event_id(outbox_enqueue('early', '{"n": 1}'))));
my @sessions = map { session($node) } 1 .. 2;
$_->query_safe('BEGIN') for @sessions;
for my $round (1 .. 2)
{
	$_->query_safe(q(INSERT INTO told SELECT outbox_event_id(outbox_enqueue('early', '{"n": 2}')))) for @sessions;
	$_->query_safe(qq(
		SAVEPOINT a;
		INSERT INTO told SELECT outbox_event_id(outbox_enqueue('early', '{"n": 3}'));
		ROLLBACK TO a)) for @sessions;
}
finish($_, 'COMMIT') for @sessions;
my $told = sql('SELECT id FROM told ORDER BY id COLLATE "C"');
is(scalar(split(/\n/, $told)), 5, 'producers were told ids');
subscribe($node, $receiver, '/ok/early', topics => "'{early}'", start => "'earliest'");
$receiver->wait_for('early', events => 5);
wait_for_pass($node);
is(ids('early'), $told, 'and those are the webhook-ids');
$node->restart;
wait_for_workers($node);
sql(q(INSERT INTO told SELECT outbox_event_id(outbox_enqueue('early', '{"n": 4}'))));
$receiver->wait_for('early', events => 6);
is(ids('early'), sql('SELECT id FROM told ORDER BY id COLLATE "C"'), 'also after a restart, and with a subscription');

# --- deliveries that wait for a retry

my $waits = "SELECT waiting = %d FROM outbox_subscriptions WHERE name = '%s'";
$receiver->switch('shop', 'fail');
subscribe($node, $receiver, '/switch/shop', topics => "'{shop}'", retry_schedule => "'{0 s,2 h}'");
sql("SELECT outbox_enqueue('shop', '{\"n\": 9}', deliver_at => now() + interval '1 h')");
enqueue_numbers($node, 'shop', 1 .. 3);
wait_until($node, sprintf($waits, 4, 'shop'), 'events wait');
is(sql("SELECT next_attempt_at BETWEEN now() + interval '30 min' AND now() + interval '61 min' FROM outbox_subscriptions"
	  . " WHERE name = 'shop'"), 't', 'it is shown until when');
is(sql("SELECT outbox_retry('shop')"), 3, 'an operator is too early');
$receiver->wait_for('shop', requests => 6);
wait_until($node, "SELECT count(*) = 3 FROM outbox_delivery WHERE attempts = 1 AND due_at > now() + interval '1 h'",
	'which uses up nothing of the schedule, and they wait again');
$receiver->switch('shop', 'ok');
my $first = sql("SELECT min(position) FROM outbox_delivery WHERE attempts > 0");
is(sql("SELECT outbox_retry('shop', ARRAY[$first])"), 1, 'one of them');
$receiver->wait_for('shop', requests => 7);
wait_until($node, sprintf($waits, 3, 'shop'), 'is delivered');
is(sql("SELECT outbox_retry('shop')"), 2, 'all of them');
$receiver->wait_for('shop', requests => 9);
wait_until($node, sprintf($waits, 1, 'shop'), 'are delivered');
is($receiver->sorted_numbers('shop'), '1 1 1 2 2 2 3 3 3', 'and not what is scheduled');
is(sql("SELECT outbox_retry('shop')"), 0, 'which waits for no retry');

# --- a paused subscription

$receiver->switch('shop', 'fail');
enqueue_numbers($node, 'shop', 4);
wait_until($node, sprintf($waits, 2, 'shop'), 'another one waits');
sql("SELECT outbox_pause('shop')");
$receiver->switch('shop', 'ok');
is(sql("SELECT outbox_retry('shop')"), 1, 'it is due');
wait_for_pass($node);
is(scalar(my @sent = $receiver->requests('shop')), 10, 'but not sent while the subscription is paused');
sql("SELECT outbox_resume('shop')");
$receiver->wait_for('shop', requests => 11);
wait_until($node, sprintf($waits, 1, 'shop'), 'it is sent as soon as it goes on');

# --- an event that a probe is trying

$receiver->switch('tried', 'fail');
subscribe($node, $receiver, '/switch/tried', topics => "'{tried}'", retry_schedule => "'{0 s,2 h}'");
enqueue_numbers($node, 'tried', 1 .. 20);
wait_until($node, "SELECT state = 'failing' AND waiting = 20 FROM outbox_subscriptions WHERE name = 'tried'", 'another endpoint fails');
$receiver->switch('tried', 'late-500');
my $tries = $receiver->requests('tried');
$receiver->wait_for('tried', requests => $tries + 1);
my $number = ($receiver->requests('tried'))[$tries]{data}{n};
my $tried = sql("SELECT position FROM outbox_delivery WHERE topic = 'tried' AND payload = '{\"n\": $number}'");
is(sql("SELECT outbox_retry('tried', ARRAY[$tried])"), 1, 'a probe waits for its answer');
$receiver->switch('tried', 'fail');
$receiver->release('tried');
$receiver->wait_for('tried', requests => $tries + 2);
wait_until($node, "SELECT state = 'dead' OR attempts = 1 AND due_at > now() + interval '1 h' FROM outbox_delivery WHERE position = $tried",
	'the event is tried again');
is(sql("SELECT state FROM outbox_delivery WHERE position = $tried"), 'waiting', 'and that uses up nothing of its schedule');

# --- an endpoint that fails as a whole

$receiver->switch('all', 'fail');
subscribe($node, $receiver, '/switch/all', topics => "'{all}'", retry_schedule => "'{0 s,2 h}'");
enqueue_numbers($node, 'all', 1 .. 100);
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'all'", 'it fails');
my $requests = $receiver->requests('all');
$receiver->wait_for('all', requests => $requests + 3);	# probes, old and new
sql("SELECT outbox_pause('all')");
wait_until($node, "SELECT in_flight = 0 FROM outbox_subscriptions WHERE name = 'all'", 'nothing is out');
wait_for_pass($node);
my $waiting = sql("SELECT waiting FROM outbox_subscriptions WHERE name = 'all'");
cmp_ok(sql("SELECT count(*) FROM outbox_delivery d JOIN outbox_subscription s ON s.id = d.subscription"
	  . " WHERE s.name = 'all' AND d.attempts = 0"), '>', 0, 'a probe has tried one that does not count as tried');
$receiver->switch('all', 'ok');
is(sql("SELECT outbox_retry('all')"), $waiting, 'all that was tried is sent');
is(sql("SELECT failing_since IS NULL FROM outbox_subscriptions WHERE name = 'all'"), 't', 'and the endpoint counts as working');
sql("SELECT outbox_resume('all')");
wait_until($node, "SELECT waiting = 0 AND lag_events = 0 FROM outbox_subscriptions WHERE name = 'all'", 'at once');
is($receiver->distinct_numbers('all'), join(' ', 1 .. 100), 'with everything');

$receiver->stop;
done_testing();
