# An event that a receiver does not accept is sent again by the schedule, and
# then kept as a dead letter; one bad receiver does not affect others.  If this
# fails, events are lost, an endpoint is flooded, or one endpoint stops the
# others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('retry');

sub state
{
	my ($name) = @_;
	return sql("SELECT state FROM outbox_subscriptions WHERE name = '$name'");
}

# Milliseconds between the attempts at the only event of a name.
sub gaps
{
	my ($name) = @_;
	my @at = map { $_->{at} } $receiver->requests($name);
	return map { $at[$_] - $at[ $_ - 1 ] } 1 .. $#at;
}

# Always works: when it gets an event, the relay has read all earlier ones.
subscribe($node, $receiver, '/ok/witness', topics => "'{witness}'");
my $witnessed = 0;

sub witness
{
	enqueue_numbers($node, 'witness', ++$witnessed);
	return $receiver->wait_for('witness', events => $witnessed, 20);
}

# --- the schedule, and a dead letter after it

subscribe($node, $receiver, '/switch/dead', topics => "'{dead}'",
	retry_schedule => "'{0 s,200 ms,400 ms}'");
$receiver->switch('dead', 'fail');
my $position = sql(q(SELECT outbox_enqueue('dead', '{"n": 1}', key => 'k')));
wait_until($node, 'SELECT count(*) = 1 FROM outbox_dead', 'an event is dead after the schedule');
my @gaps = gaps('dead');
is(scalar(@gaps), 2, 'each step of the schedule is one attempt');
cmp_ok($gaps[0], '>=', 195, 'the second attempt waits as the schedule says');
cmp_ok($gaps[1], '>=', 395, 'so does the third');
is(sql('SELECT subscription, position, topic, key, attempts, last_status, last_error FROM outbox_dead'),
	"dead|$position|dead|k|3|500|answered 500", 'outbox_dead tells what and why');
is(sql("SELECT attempt, status, error, answer, duration >= '0', at > now() - interval '1 min'"
		  . " FROM outbox_attempts WHERE subscription = 'dead' ORDER BY at"),
	join("\n", map { "$_|500|answered 500|status 500|t|t" } 1 .. 3), 'so does outbox_attempts of each attempt');
ok($node->log_contains(qr/LOG:  event $position is dead for subscription "dead" after attempt 3:/),
	'the log has a line about it');

enqueue_numbers($node, 'dead', 2);
wait_until($node, 'SELECT count(*) = 2 FROM outbox_dead', 'the next event is tried, too');
$receiver->switch('dead', 'ok');
is(sql("SELECT outbox_redrive('dead', ARRAY[$position, 0])"), '1',
	'one exact dead letter can be redriven');
$receiver->wait_for('dead', requests => 7);
my @requests = $receiver->requests('dead');
is($requests[6]{id}, $requests[0]{id}, 'a redriven event has the webhook-id that it had');
wait_until($node, 'SELECT count(*) = 1 FROM outbox_dead',
	'it is no dead letter any more, the other one is');
is(sql("SELECT outbox_redrive('dead')"), '1', 'without positions the rest is redriven');
$receiver->wait_for('dead', requests => 8);
wait_until($node, 'SELECT count(*) = 0 FROM outbox_delivery',
	'what was delivered in the end leaves no row');

# --- other failures

subscribe($node, $receiver, '/drop/dropped', topics => "'{bad}'", retry_schedule => "'{0 s}'");
subscribe($node, $receiver, '/redirect/moved', topics => "'{bad}'", retry_schedule => "'{0 s}'");
subscribe($node, $receiver, '/hang/slow', topics => "'{bad}'", retry_schedule => "'{0 s}'",
	timeout => "'200 ms'");
enqueue_numbers($node, 'bad', 1);
wait_until($node, 'SELECT count(*) = 3 FROM outbox_dead',
	'a closed connection, a redirect and no answer in time are failures');
is(sql(q(SELECT subscription, last_status, last_error <> '' FROM outbox_dead ORDER BY 1)),
	"dropped||t\nmoved|302|t\nslow||t", 'their dead letters say what happened');
is(scalar($receiver->requests('redirected')), 0, 'a redirect is not followed');

# --- Retry-After

subscribe($node, $receiver, '/retry-after-1/seconds', topics => "'{later}'",
	retry_schedule => "'{0 s,0 s}'");
subscribe($node, $receiver, '/retry-date-2/date', topics => "'{later}'",
	retry_schedule => "'{0 s,0 s}'");
enqueue_numbers($node, 'later', 1);
$receiver->wait_for('seconds', requests => 2);
$receiver->wait_for('date', requests => 2);
cmp_ok((gaps('seconds'))[0], '>=', 995, 'Retry-After in seconds is obeyed');
cmp_ok((gaps('date'))[0], '>=', 995, 'Retry-After as a date is obeyed');

# --- 410

subscribe($node, $receiver, '/switch/left', topics => "'{left}'", retry_schedule => "'{0 s,0 s}'");
$receiver->switch('left', 'gone');
enqueue_numbers($node, 'left', 1);
wait_until($node, "SELECT state = 'disabled' FROM outbox_subscriptions WHERE name = 'left'",
	'410 disables the subscription');
is(sql("SELECT action, details ->> 'state' FROM idempotency_audit WHERE object = 'left' ORDER BY at DESC LIMIT 1"),
	'idempotency relay|disabled', 'the audit says who did it');
like(sql("SELECT reason FROM outbox_subscriptions WHERE name = 'left'"), qr/410/,
	'the reason is told');
enqueue_numbers($node, 'left', 2);
witness();
is($receiver->numbers('left'), '1', 'nothing is sent to a disabled subscription');
$receiver->switch('left', 'ok');
sql("SELECT outbox_resume('left')");
$receiver->wait_for('left', requests => 3);
is($receiver->sorted_numbers('left'), '1 1 2', 'after outbox_resume it gets what it has missed');

# --- one receiver that hangs

subscribe($node, $receiver, '/hang/stuck', topics => "'{both}'", max_in_flight => 4,
	timeout => "'60 s'");
subscribe($node, $receiver, '/ok/quick', topics => "'{both}'");
sql(q(SELECT count(outbox_enqueue('both', jsonb_build_object('n', n))) FROM generate_series(1, 20) n));
$receiver->wait_for('quick', events => 20, 10);
is($receiver->sorted_numbers('quick'), join(' ', 1 .. 20),
	'one subscription gets everything while another hangs');
$receiver->wait_for('stuck', requests => 4);
witness();
is(scalar($receiver->requests('stuck')), 4, 'no more than max_in_flight requests are out');

# --- a slow request delays no retry

subscribe($node, $receiver, '/told/mixed', topics => "'{mixed}'", retry_schedule => "'{0 s,1 s,100 ms}'",
	timeout => "'60 s'");
sql(q(
	SELECT outbox_enqueue('mixed', '{"n": 1, "hold": true}');
	SELECT outbox_enqueue('mixed', '{"n": 2, "fail": 1}')));
$receiver->wait_for('mixed', requests => 3);
is($receiver->sorted_numbers('mixed'), '1 2 2', 'an event is retried while another one before it hangs');
sql(q(
	SELECT outbox_enqueue('mixed', '{"n": 3, "hold": true}', deliver_at => clock_timestamp() + interval '700 ms');
	SELECT outbox_enqueue('mixed', '{"n": 4, "fail": 2}', deliver_at => clock_timestamp() + interval '1 s')));
$receiver->wait_for('mixed', requests => 7);
is($receiver->sorted_numbers('mixed'), '1 2 2 3 4 4 4', 'deferred deliveries do not wait for each other either');

# A retry goes before newer events of its key.
sql(q(SELECT outbox_enqueue('mixed', '{"n": 5, "fail": 1}', key => 'k')));
wait_until($node, "SELECT parked = 0 AND waiting = 2 FROM outbox_subscriptions WHERE name = 'mixed'", 'one waits');
sql(q(
	BEGIN;
	SELECT outbox_enqueue('mixed', '{"n": 6}', key => 'k');
	SELECT outbox_enqueue('mixed', '{"n": 7, "hold": true}');
	COMMIT));
$receiver->wait_for('mixed', requests => 10);
is($receiver->sorted_numbers('mixed'), '1 2 2 3 4 4 4 5 5 7', 'though one of them was read behind a slow request');
$receiver->release('mixed');
wait_until($node, "SELECT delivered = 7 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'mixed'",
	'all are delivered, and counted');

# --- pause

subscribe($node, $receiver, '/told/paused', topics => "'{paused}'",
	retry_schedule => "'{0 s,1 h}'");
sql(q(SELECT outbox_enqueue('paused', '{"n": 1, "fail": 1}')));
wait_until($node, "SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'paused'",
	'an event waits for its retry');
sql("SELECT outbox_pause('paused', 'maintenance'); SELECT outbox_pause('stuck')");
enqueue_numbers($node, 'paused', 2);
is(sql("UPDATE outbox_delivery d SET due_at = clock_timestamp() FROM outbox_subscription s"
	  . " WHERE s.id = d.subscription AND s.name = 'paused' AND d.last_at IS NOT NULL RETURNING d.state"),
	'waiting', 'the time of its retry has come');
witness();
my $commits = 'SELECT sum(xact_commit) FROM pg_stat_database';
my $before = sql($commits);
sql('SELECT pg_sleep(0.5)');
cmp_ok(sql($commits) - $before, '<', 50,
	'the relay sleeps though a paused subscription has a retry due and another a request out');

$node->restart;
is(state('paused'), 'paused', 'a pause survives a restart');
wait_for_workers($node);
witness();
is($receiver->numbers('paused'), '1', 'a paused subscription gets nothing');
sql("SELECT outbox_resume('paused')");
$receiver->wait_for('paused', events => 2);
is($receiver->sorted_numbers('paused'), '1 1 2', 'after outbox_resume it gets everything');
sql("SELECT outbox_unsubscribe('stuck')");

# --- a subscription that another session has locked

my $pid = worker_pid($node, 'relay');
my $session = session($node);

subscribe($node, $receiver, '/fail/locked', topics => "'{locked}'");
$session->query_safe("BEGIN; SELECT outbox_unsubscribe('locked')");
enqueue_numbers($node, 'locked', 1);
$receiver->wait_for('locked', requests => 1);
ok(witness(), 'an open outbox_unsubscribe of one subscription does not stop the others');
$session->query_safe('COMMIT');
$session->quit;
witness();
is(worker_pid($node, 'relay'), $pid, 'nor does its commit end the relay');

# --- a subscription that is deleted with an older snapshot

subscribe($node, $receiver, '/told/older', topics => "'{older}'", retry_schedule => "'{0 s,1 h}'", timeout => "'60 s'");
$session = session($node);
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_subscription');
sql(q(
	SELECT outbox_enqueue('older', '{"n": 1, "hold": true}');
	SELECT outbox_enqueue('older', '{"n": 2, "fail": 1}')));
wait_until($node, "SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'older'", 'an event waits');
$session->query($_) for ("SELECT outbox_unsubscribe('older')", 'COMMIT');
$session->quit;
is(sql('SELECT count(*) FROM outbox_delivery WHERE subscription NOT IN (SELECT id FROM outbox_subscription)'), '0',
	'which does not see what the relay has written since: nothing is left behind');

done_testing();
