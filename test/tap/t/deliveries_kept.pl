# A subscription with keep_deliveries has a record of every attempt: when, how
# long, with which status and answer, and whether the event was delivered.  The
# others have none, and old records take no space for ever.  If this fails, an
# operator cannot tell a customer what his endpoint has answered, or the disk
# fills up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant { EVENTS => 700, BATCH => 50 };

my $receiver = Receiver->start;
my $node = start_server('deliveries_kept', conf => "idempotency.sweep_interval = '100ms'");
my $soon = "retry_schedule => '{0 s,50 ms,50 ms}'";

sub history
{
	my ($columns, $name) = @_;
	return sql("SELECT $columns FROM outbox_history WHERE subscription = '$name'");
}

sub delivered
{
	my ($name, $count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, "SELECT delivered = $count FROM outbox_subscriptions WHERE name = '$name'", "$name has all events");
	return;
}

# --- successes

subscribe($node, $receiver, '/ok/kept', topics => "'{a}'", keep_deliveries => "'7 days'");
subscribe($node, $receiver, '/ok/plain', topics => "'{a}'");
sql("SELECT count(outbox_enqueue('a', '{}', 'k' || n, 't')) FROM generate_series(1, @{[ EVENTS ]}) n");
delivered($_, EVENTS) for qw(kept plain);
is(history('count(*), count(DISTINCT position), min(attempt), max(attempt), min(status), max(status), count(error)', 'kept'),
	EVENTS . '|' . EVENTS . '|1|1|200|200|0', 'there is a row for each event');
is(history('count(*)', 'plain'), '0', 'and none for a subscription that does not ask');
is( history("bool_and(at BETWEEN created_at AND now() AND duration >= '0' AND duration < '1 min' AND topic = 'a' AND type = 't'"
		  . " AND key = 'k' || position), min(answer), max(answer)", 'kept'),
	't|status 200|status 200', 'it tells what was sent, when, and the answer');
is( sql("SELECT state, count(*), min(attempts), min(last_status), count(next_attempt_at), count(last_error), count(duration)"
		  . " FROM outbox_deliveries GROUP BY 1"),
	'delivered|' . EVENTS . '|1|200|0|0|' . EVENTS, 'outbox_deliveries shows the deliveries');
is(sql("SELECT count(*) FROM outbox_deliveries WHERE state = 'waiting'"), '0', 'none of which waits');

# --- failures, in order

subscribe($node, $receiver, '/told/fails', topics => "'{b}'", keep_deliveries => "'1 min'",
	retry_schedule => "'{0 s,50 ms,50 ms}'");
sql(q(SELECT outbox_enqueue('b', '{"fail": 2, "status": 503}', 'x'); SELECT outbox_enqueue('b', '{}', 'x');
	SELECT outbox_enqueue('b', '{"fail": 9, "status": 422}');));
delivered('fails', 2);
wait_until($node, "SELECT dead = 1 FROM outbox_subscriptions WHERE name = 'fails'", 'one is dead');
is( sql("SELECT string_agg(attempt || ':' || status, ' ' ORDER BY at), max(topic), max(key) FROM outbox_history"
		  . " WHERE subscription = 'fails' GROUP BY position ORDER BY position"),
	"1:503 2:503 3:200|b|x\n1:200|b|x\n1:422 2:422 3:422|b|", 'each attempt has its row');
is(history("count(*) FILTER (WHERE error LIKE 'answered %'), count(*) FILTER (WHERE error IS NULL)", 'fails'), '5|2',
	'with the error');
is( sql("SELECT string_agg(state || attempts, ' ' ORDER BY position) FROM outbox_deliveries WHERE subscription = 'fails'"),
	'delivered3 delivered1 dead3', 'outbox_deliveries shows how each event ended');

# --- no answer

subscribe($node, $receiver, '/drop/drops', topics => "'{c}'", keep_deliveries => "'1 min'", retry_schedule => "'{0 s}'");
sql("SELECT outbox_enqueue('c', '{}')");
wait_until($node, "SELECT dead = 1 FROM outbox_subscriptions WHERE name = 'drops'", 'one got no answer');
is(history('attempt, status IS NULL, error IS NOT NULL, answer IS NULL', 'drops'), '1|t|t|t', 'its row has no status');

# --- several events in a request

subscribe($node, $receiver, '/each-' . BATCH . '/batched', topics => "'{d}'", keep_deliveries => "'1 min'",
	format => "'cloudevents'", batch => BATCH);
sql("SELECT count(outbox_enqueue('d', '{}')) FROM generate_series(1, @{[ 4 * BATCH ]})");
delivered('batched', 4 * BATCH);
is(history('count(*), count(DISTINCT position), min(status), max(status)', 'batched'),
	4 * BATCH . '|' . 4 * BATCH . '|200|200', 'each event of a request has a row');

# --- it can be turned on and off

sql("SELECT outbox_alter('plain', keep_deliveries => '1 h'); SELECT outbox_alter('kept', keep_deliveries => '0')");
is(history('count(*)', 'kept'), '0', 'what is not kept any more is not shown');
sql("SELECT outbox_enqueue('a', '{}')");
delivered($_, EVENTS + 1) for qw(kept plain);
wait_until($node, "SELECT count(*) = 1 FROM outbox_history WHERE subscription = 'plain'", 'what is kept from now on is');

# --- a crash loses none that is recorded

$node->stop('immediate');
$node->start;
wait_for_workers($node);
sql("SELECT outbox_enqueue('a', '{}')");
delivered('plain', EVENTS + 2);
is(history('count(DISTINCT position), min(status)', 'plain'), '2|200', 'a crash loses no record');

# --- space

sql("SELECT outbox_unsubscribe(name) FROM outbox_subscriptions");
is(sql("SELECT count(*) FROM outbox_history"), '0', 'the history of a subscription ends with it');
wait_until($node, "SELECT bool_and(pg_relation_size(name::regclass) = 0) FROM idempotency_segments WHERE name LIKE 'outbox_history%'",
	'and its space is freed');

done_testing();
