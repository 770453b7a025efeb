# No committed event is skipped, whatever the order in which transactions draw
# their positions and commit, and whichever process dies in between.  Each part
# tests one rule of the outbox's protocol.  If this fails, events are lost
# without a trace.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('skipped', conf => <<EOF);
max_prepared_transactions = 10
max_connections = 40
EOF

# A new subscription to a topic of the same name.
sub topic
{
	my ($name, %params) = @_;
	subscribe($node, $receiver, "/switch/$name", topics => "'{$name}'", %params);
	return $name;
}

# An open transaction that has enqueued some events.
sub straggler
{
	my ($topic, @numbers) = @_;
	my $session = session($node);

	$session->query_safe('BEGIN');
	add_to($session, $topic, @numbers);
	return $session;
}

sub add_to
{
	my ($session, $topic, @numbers) = @_;
	$session->query_safe("SELECT outbox_enqueue('$topic', '{\"n\": $_}')") for @numbers;
	return;
}

# --- a transaction that was passed

my $topic = topic('passed');
my $open = straggler($topic, 1);
enqueue_numbers($node, $topic, 2, 3);
$receiver->wait_for($topic, events => 2, 10);
is($receiver->sorted_numbers($topic), '2 3', 'an open transaction does not stop the log');
add_to($open, $topic, 4);
enqueue_numbers($node, $topic, 5);
$receiver->wait_for($topic, events => 3, 10);
finish($open, 'COMMIT');
$receiver->wait_for($topic, events => 5);
is($receiver->sorted_numbers($topic), '1 2 3 4 5',
	'its events are sent once it commits, from all its positions');

# --- several of them, in every order, some of which roll back

$topic = topic('several');
my @open = map { straggler($topic, $_) } 1 .. 4;
enqueue_numbers($node, $topic, 5);
$receiver->wait_for($topic, events => 1);
add_to($open[0], $topic, 6);
add_to($open[2], $topic, 7);
finish($open[3], 'COMMIT');
enqueue_numbers($node, $topic, 8);
finish($open[1], 'ROLLBACK');
finish($open[0], 'COMMIT');
$receiver->wait_for($topic, events => 5);
finish($open[2], 'COMMIT');
enqueue_numbers($node, $topic, 9);
$receiver->wait_for($topic, events => 8);
is($receiver->sorted_numbers($topic), '1 3 4 5 6 7 8 9',
	'several stragglers, one of which rolls back');

# --- subtransactions

$topic = topic('savepoints');
$open = session($node);
$open->query_safe($_) for (
	'BEGIN', 'SAVEPOINT a',
	"SELECT outbox_enqueue('$topic', '{\"n\": 1}')",
	'ROLLBACK TO a');
enqueue_numbers($node, $topic, 2);
$receiver->wait_for($topic, events => 1);
$open->query_safe($_) for (
	'SAVEPOINT b',
	"SELECT outbox_enqueue('$topic', '{\"n\": 3}')",
	'SAVEPOINT c',
	"SELECT outbox_enqueue('$topic', '{\"n\": 4}')",
	'RELEASE b', 'SAVEPOINT d',
	"SELECT outbox_enqueue('$topic', '{\"n\": 5}')",
	'ROLLBACK TO d');
enqueue_numbers($node, $topic, 6);
$receiver->wait_for($topic, events => 2);
finish($open, 'COMMIT');
$receiver->wait_for($topic, events => 4);
is($receiver->sorted_numbers($topic), '2 3 4 6',
	'what committed subtransactions of a straggler have enqueued');
$open = session($node);
$open->query_safe($_) for (
	'BEGIN', 'SAVEPOINT a',
	"SELECT outbox_enqueue('$topic', '{\"n\": 7}')",
	'RELEASE a');
enqueue_numbers($node, $topic, 8);
$receiver->wait_for($topic, events => 5);
finish($open, 'COMMIT');
$receiver->wait_for($topic, events => 6);
is($receiver->sorted_numbers($topic), '2 3 4 6 7 8', 'also one that is over before the relay sees its transaction');

# --- the relay dies in between

$topic = topic('relay_dies');
@open = map { straggler($topic, $_) } 1, 2;
enqueue_numbers($node, $topic, 3);
$receiver->wait_for($topic, events => 1);
wait_until($node, "SELECT delivered = 1 FROM outbox_subscriptions WHERE name = '$topic'", 'one is delivered');
ok(terminate_worker($node, 'relay'), 'the relay comes back');
$receiver->switch($topic, 'hold');
finish($open[0], 'COMMIT');
$receiver->wait_for($topic, requests => 2);
sql('SELECT pg_terminate_backend(' . worker_pid($node, 'relay') . ')');
finish($open[1], 'COMMIT');
$receiver->wait_for($topic, requests => 4);
is($receiver->sorted_numbers($topic), '1 1 2 3',
	'a straggler whose event is on its way when the relay dies, and one that ends while there is none');
$receiver->release($topic);

# --- the subscription is paused in between

$topic = topic('paused', max_in_flight => 1);
$open = straggler($topic, 1);
enqueue_numbers($node, $topic, 2);
$receiver->wait_for($topic, events => 1);
sql("SELECT outbox_pause('paused')");
wait_for_pass($node);
finish($open, 'COMMIT');
enqueue_numbers($node, $topic, 3);
wait_for_pass($node);
sql("SELECT outbox_resume('paused')");
$receiver->wait_for($topic, events => 3);
is($receiver->numbers($topic), '2 1 3',
	'a straggler that ends while its subscription is paused: its event goes before what came later');

# --- a subscription begins while transactions are open

$open = straggler('begun', 1);
topic('begun');
enqueue_numbers($node, 'begun', 2);
$receiver->wait_for('begun', events => 1);
finish($open, 'COMMIT');
$receiver->wait_for('begun', events => 2);
is($receiver->sorted_numbers('begun'), '1 2', 'a new subscription gets what is committed after it');
$receiver->new_secret('all');
sql("SELECT outbox_subscribe('all', '" . $receiver->url('/ok/all')
	  . "', topics => '{begun}', start => 'earliest')");
$receiver->wait_for('all', events => 2);
is($receiver->sorted_numbers('all'), '1 2', 'with start => earliest it gets what was there before');

# --- more stragglers' rows than fit into a batch

$topic = topic('batches');
@open = map {
	my $session = session($node);
	$session->query_safe("BEGIN; SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n)))"
		  . " FROM generate_series($_ * 1000 + 1, $_ * 1000 + 700) n");
	$session
} 0, 1;
enqueue_numbers($node, $topic, 5000);
$receiver->wait_for($topic, events => 1);
finish($_, 'COMMIT') for @open;
$receiver->wait_for($topic, events => 1401);
is($receiver->sorted_numbers($topic), join(' ', 1 .. 700, 1001 .. 1700, 5000),
	'stragglers with more events than are read at once');

# --- every way to insert

$topic = topic('inserted');
sql("INSERT INTO outbox_log (topic, payload) VALUES ('$topic', '{\"n\": 1}')");
sql("COPY outbox_log (topic, payload) FROM STDIN;\n"
	  . join('', map { "$topic\t{\"n\": $_}\n" } 2 .. 9) . "\\.\n");
$open = session($node);
$open->query_safe("BEGIN; INSERT INTO outbox_log (topic, payload) VALUES ('$topic', '{\"n\": 10}')");
sql("INSERT INTO outbox_log (topic, payload) SELECT '$topic', jsonb_build_object('n', n)"
	  . ' FROM generate_series(11, 20000) n');
finish($open, 'COMMIT');
$receiver->wait_for($topic, events => 20000);
is($receiver->sorted_numbers($topic), join(' ', 1 .. 20000),
	'INSERT, COPY and INSERT .. SELECT of 20,000 rows');

# --- topics that a prepared transaction has changed

$topic = topic('prepared');
for my $n (1 .. 5)
{
	my ($wanted, $other) = $n % 2 ? qw(odd even) : qw(even odd);

	sql("BEGIN; SELECT outbox_alter('prepared', topics => '{$wanted}'); PREPARE TRANSACTION 'p'");
	sql(qq(COMMIT PREPARED 'p'; SELECT outbox_enqueue('$other', '{"n": 0}')));
	enqueue_numbers($node, $wanted, $n);
	$receiver->wait_for($topic, events => $n);
}
is($receiver->sorted_numbers($topic), '1 2 3 4 5', 'topics that a prepared transaction has changed');

# --- a sequence that was set back

my $last = sql('SELECT last_value FROM outbox_position_seq');
is(sql("SELECT setval('outbox_position_seq', 1, false); SELECT outbox_enqueue('t', '1')"), "1\n" . ($last + 1),
	'a position that was handed out before is passed over');
is(sql("SELECT setval('outbox_position_seq', $last + 15000000); SELECT outbox_enqueue('t', '1'); SELECT setval('outbox_position_seq', $last)"),
	join("\n", $last + 15000000, $last + 15000001, $last), 'set ahead and back');
is(error_code($node, 'postgres', "SELECT outbox_enqueue('t', '1')"), '55000', 'a call does not pass over any number of them');
sql("SELECT setval('outbox_position_seq', $last + 15000001)");
is(sql("SELECT outbox_enqueue('t', '1')"), $last + 15000002, 'but goes on once the sequence is set');

# --- a crash in between

$topic = topic('crash');
@open = map { straggler($topic, $_) } 1, 2;
enqueue_numbers($node, $topic, 3);
$receiver->wait_for($topic, events => 1);
finish($open[0], 'COMMIT');
$node->stop('immediate');
eval { $open[1]->quit };
$node->start;
wait_for_workers($node);
wait_for_pass($node);

# After the crash no session knows a position, so the first transaction may
# have the lowest of all.  The reload makes the relay read at once, before it
# would pass it.
my $sent = $receiver->requests('passed');
$open = session($node);
$open->query_safe("BEGIN; SELECT outbox_enqueue('$topic', '{\"n\": 4}'); SELECT pg_reload_conf()");
enqueue_numbers($node, $topic, 5);
$receiver->wait_for($topic, events => 3);
finish($open, 'COMMIT');
$receiver->wait_for($topic, events => 4);
is($receiver->distinct_numbers($topic), '1 3 4 5',
	'a straggler that committed just before a crash, and one that did not');
wait_for_pass($node);
is(scalar($receiver->requests('passed')), $sent, 'nobody begins again at the first position');

done_testing();
