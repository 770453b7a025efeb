# One head reads the log for all partitions that follow it, and one row says how
# far it has got.  If this fails, an event is skipped or sent again when a relay
# dies, a subscription is changed or events are replayed; or the log is kept for
# subscriptions that want nothing of it; or what an event costs grows with the
# number of subscriptions that do not want it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant { IDLE => 300, EVENTS => 40, PAUSE_MS => 50, CROWD => 1200, TOPICS => 5000 };

my $receiver = Receiver->start;
my $node = start_server('head');

# How far the head's row says that it has read, and the end of the log.
my $head_is_at_end = 'SELECT position = (SELECT last_value FROM outbox_position_seq) FROM outbox_head WHERE relay = 0';

sub enqueue
{
	my ($topic, @numbers) = @_;
	enqueue_numbers($node, $topic, @numbers);
	return;
}

sub follows
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition p JOIN outbox_subscription s ON s.id = p.subscription'
		  . " WHERE s.name = '$name'", "$name follows the head");
}

sub id
{
	my ($name) = @_;
	return sql("SELECT id FROM outbox_subscription WHERE name = '$name'");
}

# --- an event that only some want writes rows for these only

subscribe($node, $receiver, '/ok/wanted', topics => "'{wanted}'");
sql("SELECT count(outbox_subscribe('idle ' || n, '" . $receiver->url('/ok/idle') . "', topics => '{idle*}')) FROM generate_series(1, @{[ IDLE ]}) n");
wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition', 'all follow the head');
my $updates = 'SELECT pg_stat_get_tuples_updated(c.oid) FROM pg_class c WHERE c.oid = $$outbox_partition$$::regclass';
my $own = sql("SELECT max(position) FROM outbox_partition WHERE subscription <> " . id('wanted'));
sql('SELECT pg_sleep(1.5)');    # statistics are reported once in a second
my $before = sql($updates);
enqueue_steadily($node, 'wanted', EVENTS, PAUSE_MS);
$receiver->wait_for('wanted', events => EVENTS);
wait_until($node, $head_is_at_end, 'the head has read all');
sql('SELECT pg_sleep(1.5)');
cmp_ok(sql($updates) - $before, '<=', 3 * EVENTS, 'few rows are written');
is(sql("SELECT max(position) FROM outbox_partition WHERE subscription <> " . id('wanted')), $own, 'none of those that want nothing');
is(sql('SELECT min(position) = max(position) AND max(lag_events) = 0 FROM outbox_subscriptions'), 't', 'but they are not behind');
is(sql("SELECT count(*) FROM outbox_partitions_behind((SELECT last_value FROM outbox_position_seq))"), '0',
	'and the log is not kept for them');

# --- a relay dies

subscribe($node, $receiver, '/hold/held', topics => "'{held}'", max_in_flight => 2);
follows('held');
enqueue('held', 1 .. 6);
$receiver->wait_for('held', requests => 2);
enqueue('wanted', EVENTS + 1 .. EVENTS + 3);
wait_until($node, $head_is_at_end, 'the head has read on');
is(sql('SELECT head IS NULL FROM outbox_partition WHERE subscription = ' . id('held')), 't', 'one with requests out does not follow');
ok(terminate_worker($node, 'relay'), 'a new relay starts');
$receiver->release('held');
$receiver->wait_for('held', requests => 8);
is($receiver->sorted_numbers('held'), '1 1 2 2 3 4 5 6', 'what was not answered, or not sent, is sent by the next relay');
$receiver->wait_for('wanted', events => EVENTS + 3);
is($receiver->sorted_numbers('wanted'), join(' ', 1 .. EVENTS + 3), 'what was recorded is not sent again');
follows('held');

# --- an open transaction is passed, and ends while the relay is gone

my $late = session($node);
$late->query_safe('BEGIN');
$late->query_safe(q(SELECT outbox_enqueue('wanted', '{"n": 100}')));
enqueue('wanted', 101);
$receiver->wait_for('wanted', events => EVENTS + 4);
wait_until($node, "SELECT cardinality(stragglers) = 1 FROM outbox_head", 'the head has passed an open transaction');
ok(terminate_worker($node, 'relay'), 'a new relay starts');
$late->query_safe('COMMIT');
$receiver->wait_for('wanted', events => EVENTS + 5);
is($receiver->sorted_numbers('wanted'), join(' ', sort { $a <=> $b } 1 .. EVENTS + 3, 100, 101), 'its event is sent, each once');

# --- a change and an event in one transaction

my $calm = id('idle 1');
$receiver->set_secret('idle', sql("SELECT secret FROM outbox_subscription WHERE id = $calm"));
for my $n (1 .. 20)
{
	sql("BEGIN; SELECT outbox_alter('idle 1', topics => '{new $n}'); SELECT outbox_enqueue('new $n', '{\"n\": $n}'); COMMIT");
}
$receiver->wait_for('idle', events => 20);
is($receiver->sorted_numbers('idle'), join(' ', 1 .. 20), 'an event goes by the topics of its own transaction');

# Also if more subscriptions have changed than are loaded at once.
sql("SELECT count(outbox_subscribe('crowd ' || n, '" . $receiver->url('/hold/crowd') . "', topics => '{crowd}')) FROM generate_series(1, @{[ CROWD ]}) n");
wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition', 'many follow the head');
sql("BEGIN; SELECT count(outbox_alter('crowd ' || n, topics => '{moved}')) FROM generate_series(1, @{[ CROWD ]}) n;
	SELECT outbox_enqueue('moved', '{\"n\": 1}'); COMMIT");
wait_until($node, $head_is_at_end, 'the head has read on');
cmp_ok(sql('SELECT max(rows) FROM (SELECT count(*) AS rows FROM outbox_partition GROUP BY xmin) written'), '<=', 200,
	'many stop following it, in small transactions');
$receiver->release('crowd');
wait_until($node, "SELECT sum(delivered) = @{[ CROWD ]} FROM outbox_subscriptions WHERE name LIKE 'crowd %'", 'each of many gets it');

# --- a new topic is compared with all subscriptions, but not many in one pass

my $longest_ms = watch_relay($node);
my $began_at = time;
sql("SELECT count(outbox_enqueue('topic ' || n, '1')) FROM generate_series(1, @{[ TOPICS ]}) n");
wait_until($node, $head_is_at_end, 'the head has read events of many topics');
my $took_ms = 1000 * (time - $began_at);
cmp_ok($longest_ms->(), '<', $took_ms / 4, 'each of its transactions was short');
sql("SELECT outbox_unsubscribe('crowd ' || n) FROM generate_series(1, @{[ CROWD ]}) n");

# --- replay of what only the head has passed

wait_until($node, $head_is_at_end, 'the head is at the end');
follows('idle 2');
my $first = sql("SELECT position FROM outbox_log WHERE topic = 'wanted' ORDER BY position LIMIT 1");
sql("SELECT outbox_unsubscribe('idle 1'); SELECT outbox_alter('idle 2', topics => '{wanted}')");
$receiver->set_secret('idle', sql("SELECT secret FROM outbox_subscription WHERE name = 'idle 2'"));
is(sql("SELECT outbox_replay('idle 2', from_position => $first)"), $first, 'one that had nothing to send reads again');
$receiver->wait_for('idle', requests => 20 + EVENTS + 5);
is(scalar($receiver->requests('idle')), 20 + EVENTS + 5, 'all of it');
follows('idle 2');

# The open transactions that only the head has passed are those of a replay, too.
$late->query_safe('BEGIN');
$late->query_safe(q(SELECT outbox_enqueue('wanted', '{"n": 200}')));
enqueue('unwanted', 201);
wait_until($node, 'SELECT cardinality(h.stragglers) = 1 AND h.position = q.last_value FROM outbox_head h, outbox_position_seq q',
	'the head has passed another open transaction');
is(sql("SELECT cardinality(stragglers) FROM outbox_partition WHERE subscription = " . id('idle 2')), '0', 'of which the row of one that follows it says nothing');
my $last = sql("SELECT max(position) FROM outbox_log");
is(sql("BEGIN; SELECT outbox_replay('idle 2', from_position => $last); SELECT outbox_pause('idle 2'); COMMIT"), "$last\n", 'a replay of the last event');
$late->query_safe('COMMIT');
sql("SELECT outbox_resume('idle 2')");
$receiver->wait_for('idle', requests => 20 + EVENTS + 6);
is(scalar(grep { $_ == 200 } split(/ /, $receiver->sorted_numbers('idle'))), 1, 'the event of the open transaction is sent');

# --- one that is paused when the server stops does not follow the head

subscribe($node, $receiver, '/ok/left', topics => "'{left}'");
follows('left');
my $locker = session($node);
$locker->query_safe('BEGIN; SELECT FROM outbox_partition WHERE subscription = ' . id('left') . ' FOR UPDATE');
sql("SELECT outbox_pause('left'); SELECT outbox_wake()");
wait_for_pass($node);
is(sql('SELECT head FROM outbox_partition WHERE subscription = ' . id('left')), '0', 'its row says that it does');
$node->stop('immediate');
$node->start;
enqueue('left', 1 .. 3);
enqueue('wanted', 300);
wait_until($node, $head_is_at_end, 'the head has read on');
sql("SELECT outbox_resume('left')");
$receiver->wait_for('left', events => 3);
is($receiver->sorted_numbers('left'), '1 2 3', 'its events are sent when it goes on');

# --- one that cannot be served does not follow the head

sql('ALTER TABLE outbox_subscription DROP CONSTRAINT outbox_subscription_row_check');
follows('left');
$node->stop('immediate');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->start;
sql(q(UPDATE outbox_subscription SET headers = '[1]' WHERE name = 'left'));
is(sql('SELECT head FROM outbox_partition WHERE subscription = ' . id('left')), '0', 'its row says that it does');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->restart;
wait_until($node, q(SELECT state = 'stuck' FROM outbox_subscriptions WHERE name = 'left'), 'it cannot be served');
enqueue('left', 4 .. 5);
enqueue('wanted', 301);
wait_until($node, $head_is_at_end, 'the head has read on');
sql(q(UPDATE outbox_subscription SET headers = NULL WHERE name = 'left'; SELECT outbox_resume('left')));
$receiver->wait_for('left', events => 5);
is($receiver->sorted_numbers('left'), '1 2 3 4 5', 'its events are sent when it is right again');

# --- what cannot be recorded stops no delivery

# The head's row; then that of a paused subscription, which has to be written
# before it when the relay has started.
for my $bad ([ head => 'false' ], [ partition => 'subscription <> ' . id('idle 3') ])
{
	my ($table, $check) = @$bad;

	follows('idle 3');
	$node->stop('immediate');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$node->start;
	sql(q(UPDATE outbox_subscription SET state = 'paused' WHERE name = 'idle 3'))
	  if $table eq 'partition';
	sql("ALTER TABLE outbox_$table ADD CONSTRAINT bad CHECK ($check) NOT VALID");
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
	my $start = -s $node->logfile;
	$node->restart;
	my $relay = worker_pid($node, 'relay');
	my $requests = $receiver->requests('wanted');
	for my $n (310 .. 312)
	{
		enqueue('wanted', $n);
		$receiver->wait_for('wanted', requests => ++$requests);
		sql('SELECT pg_sleep(1)');
	}
	is(worker_pid($node, 'relay'), $relay, "$table: the relay goes on");
	$node->wait_for_log(qr/WARNING:  the relay cannot record how far it has read: new row for relation "outbox_$table" violates/, $start);
	sql("ALTER TABLE outbox_$table DROP CONSTRAINT bad");
	wait_until($node, $head_is_at_end, 'it is recorded when that is possible again');
	$node->wait_for_log(qr/LOG:  the relay records again how far it has read/, $start);
	is(() = slurp_file($node->logfile, $start) =~ /the relay cannot record/g, 1, 'and was reported once');
}

# --- one that is unsubscribed gets nothing more of a topic that the head knows

for my $n (1 .. 20)
{
	subscribe($node, $receiver, '/ok/brief', topics => "'{wanted}'");
	sql("SELECT outbox_enqueue('wanted', '{\"n\": 40$n}'); SELECT outbox_unsubscribe('brief'); SELECT outbox_wake()");
	wait_for_pass($node);
	enqueue('wanted', 500 + $n);
}
wait_until($node, "SELECT min(position) = (SELECT last_value FROM outbox_position_seq) FROM outbox_subscriptions WHERE name = 'wanted'",
	'subscriptions come and go');
ok(!$node->log_contains(qr/terminated by signal|server process .* was terminated/), 'and the relay goes on');

# --- a backlog is read once, and each takes what it can

subscribe($node, $receiver, '/hold/slow', topics => "'{both}'", max_in_flight => 1);
subscribe($node, $receiver, '/ok/fast', topics => "'{both}'");
follows($_) for qw(slow fast);
sql("SELECT count(outbox_enqueue('both', jsonb_build_object('n', n))) FROM generate_series(1, 4000) n");
$receiver->wait_for('fast', events => 4000);
is(scalar($receiver->requests('slow')), 1, 'one that holds its first request does not hold up another');
$receiver->release('slow');
$receiver->wait_for('slow', events => 4000);
is($receiver->sorted_numbers('slow'), join(' ', 1 .. 4000), 'it gets each event once');
follows('slow');

$late->quit;
$locker->quit;
done_testing();
