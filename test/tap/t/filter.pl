# A subscription with a filter gets the events whose payloads match it, in the
# order of their keys, and others are counted.  If this fails, an endpoint gets
# what it did not ask for, or an event that it needs is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { LARGE => 12 };

# A payload of so many arrays in one another, and the memory for its filter.
use constant { DEEP => 300, SPARE_KB => 200_000 };

my $receiver = Receiver->start;
my $node = start_server('filter');
my $filter = q('$.amount > 100');

sub enqueue
{
	my ($topic, @payloads) = @_;
	sql("SELECT count(outbox_enqueue('$topic', p)) FROM unnest(ARRAY[" . join(',', map { "'$_'::jsonb" } @payloads) . ']) p');
	return;
}

# The member n of all payloads that have come.
sub numbers
{
	my ($name) = @_;
	return join(' ', map { $_->{body} =~ /"n": ?(\d+)/ } $receiver->requests($name));
}

sub wait_for_state
{
	my ($name, $condition, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT $condition FROM outbox_subscriptions WHERE name = '$name'", "$name: $what");
}

sub counts
{
	my ($name) = @_;
	return sql("SELECT filtered, filter_errors FROM outbox_subscriptions WHERE name = '$name'");
}

# What each event is, and whether the filter lets it pass: 1 and 5 are over 100,
# 2 and 3 are not, and 4 and 6 have no number there.
my @mixed = (
	'{"n": 1, "amount": 101}', '{"n": 2, "amount": 100}', '{"n": 3}',
	'{"n": 4, "amount": "much"}', '{"n": 5, "amount": 1e30}', '{"n": 6, "amount": {}}', '[]', '"text"');

# --- of events that the head reads, and of those that a subscription reads

subscribe($node, $receiver, '/ok/all', topics => q('{order}'));
subscribe($node, $receiver, '/ok/over', topics => q('{order}'), filter => $filter);
subscribe($node, $receiver, '/ok/every', topics => q('{order}'), filter => q('true'));
enqueue('order', @mixed);
$receiver->wait_for('all', events => 8);
$receiver->wait_for('over', events => 2);
wait_for_state('over', 'filtered = 6', 'what is filtered out is counted');
is(counts('over'), '6|2', 'and an unknown result also as an error');
is(numbers('over'), '1 5', 'only what matches is sent');
wait_for_state('every', 'delivered = 8 AND filtered = 0', 'true is no filter');
wait_for_state('over', 'delivered = 2 AND lag_events = 0 AND waiting = 0 AND dead = 0', 'nothing is behind');
subscribe($node, $receiver, '/ok/later', topics => q('{order}'), filter => $filter, start => q('earliest'));
$receiver->wait_for('later', events => 2);
wait_for_state('later', 'filtered = 6 AND filter_errors = 2 AND delivered = 2', 'the same if it reads for itself');
is(numbers('later'), '1 5', 'the same events');
sql('SELECT pg_sleep(0.5)');
is(scalar($receiver->requests('over')), 2, 'nothing else comes');

# --- a filter is changed, and removed

enqueue('order', '{"n": 7, "amount": 7}', '{"n": 8, "amount": 700}');
$receiver->wait_for('over', events => 3);
sql(q(BEGIN; SELECT outbox_alter('over', filter => '$.amount < 100'); SELECT outbox_enqueue('order', '{"n": 9, "amount": 9}'), outbox_enqueue('order', '{"n": 10, "amount": 900}'); COMMIT));
$receiver->wait_for('over', events => 4);
is(numbers('over'), '1 5 8 9', 'the new filter applies to the events of its transaction');
sql(q(SELECT outbox_alter('over', timeout => '5 s')));
enqueue('order', '{"n": 11, "amount": 11}', '{"n": 12, "amount": 1200}');
$receiver->wait_for('over', events => 5);
sql(q(SELECT outbox_alter('over', filter => 'true')));
enqueue('order', '{"n": 13, "amount": 1300}', '{"n": 14}');
$receiver->wait_for('over', events => 7);
is(numbers('over'), '1 5 8 9 11 13 14', 'another change leaves the filter; true removes it');

# --- order per key, and deferred deliveries

subscribe($node, $receiver, '/ok/keyed', topics => q('{keyed}'), filter => q('$.n != 2'));
sql(q(SELECT count(outbox_enqueue('keyed', jsonb_build_object('n', n), key => 'k',
	deliver_at => CASE WHEN n = 1 THEN clock_timestamp() + interval '2 s' END)) FROM generate_series(1, 4) n));
$receiver->wait_for('keyed', events => 3);
is(numbers('keyed'), '3 4 1', 'events of a key stay in order');
subscribe($node, $receiver, '/told/retried', topics => q('{retried}'), filter => q('$.n > 1'), retry_schedule => q('{0 s,1 s}'));
enqueue('retried', map { qq({"n": $_, "fail": 1}) } 1 .. 2);
wait_until($node, q(SELECT count(*) = 1 FROM outbox_deliveries WHERE subscription = 'retried' AND attempts = 1), 'an event waits');
sql(q(SELECT outbox_alter('retried', filter => '$.n > 2')));
wait_for_state('retried', 'delivered = 1', 'a new filter does not concern events that wait');
is(numbers('retried'), '2 2', 'which are sent again');

# --- replay asks the filter again, redrive does not, and a ping passes

sql(q(SELECT outbox_alter('over', filter => '$.n == 2')));
sql(q(SELECT outbox_replay('over', (SELECT min(position) FROM outbox_log))));
$receiver->wait_for('over', events => 8);
is(numbers('over'), '1 5 8 9 11 13 14 2', 'replay sends what the filter lets pass now');
subscribe($node, $receiver, '/told/dead', topics => q('{dead}'), filter => q('$.n == 1'), retry_schedule => q('{0 s}'));
enqueue('dead', '{"n": 1, "fail": 1, "status": 400}');
wait_for_state('dead', 'dead = 1', 'an event is dead');
sql(q(SELECT outbox_alter('dead', filter => '$.n == 2')));
sql(q(SELECT outbox_redrive('dead')));
wait_for_state('dead', 'delivered = 1', 'redrive sends it');
sql(q(SELECT outbox_ping('dead')));
wait_for_state('dead', 'delivered = 2', 'a ping is sent');

# --- errors that jsonpath raises, whatever it is asked for

my @bad = (
	q($.at.datetime() < "2026-01-01T00:00:00+00".datetime()),
	q($.n.datetime("no such format") == 1),
	'strict $.missing > 1', '$.n', '$.n / 0 == 1');
for my $i (0 .. $#bad)
{
	subscribe($node, $receiver, "/ok/bad$i", topics => q('{bad}'), filter => "'$bad[$i]'");
	subscribe($node, $receiver, "/ok/earliest$i", topics => q('{bad}'), filter => "'$bad[$i]'");
}
subscribe($node, $receiver, '/ok/good', topics => q('{bad}'), filter => q('$.n > 0'));
wait_for_pass($node);
sql(q(UPDATE outbox_partition SET head = NULL WHERE subscription IN (SELECT id FROM outbox_subscription WHERE name LIKE 'earliest%'); SELECT outbox_wake()));
enqueue('bad', map { qq({"n": $_, "at": "2026-01-01"}) } 1 .. 3);
$receiver->wait_for('good', events => 3);
wait_for_state($_, 'filtered = 3 AND filter_errors = 3 AND lag_events = 0', 'errors are counted') for map { ("bad$_", "earliest$_") } 0 .. $#bad;
is(sql("SELECT count(*) FROM outbox_subscriptions WHERE state <> 'active'"), '0', 'nothing is stuck');
unlike(slurp_file($node->logfile), qr/(WARNING|ERROR): /, 'the log has no message about it');

# --- much that does not match

subscribe($node, $receiver, '/ok/few', topics => q('{many}'), filter => q('$.n == 2000'), partitions => 4);
sql(q(SELECT count(outbox_enqueue('many', jsonb_build_object('n', n))) FROM generate_series(1, 2000) n));
$receiver->wait_for('few', events => 1);
wait_for_state('few', 'filtered = 1999', 'all others are counted');
subscribe($node, $receiver, '/ok/large', topics => q('{large}'), filter => "'\$.n == @{[ LARGE ]}'");
sql("SELECT count(outbox_enqueue('large', jsonb_build_object('n', n, 'x', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 30000) i)))) FROM generate_series(1, @{[ LARGE ]}) n");
$receiver->wait_for('large', events => 1);
subscribe($node, $receiver, '/ok/enormous', topics => q('{large}'), filter => "'\$.n == @{[ LARGE ]}'", start => q('earliest'));
$receiver->wait_for('enormous', events => 1);
wait_for_state($_, 'filtered = ' . (LARGE - 1), 'large payloads are read in several parts') for qw(large enormous);
my $transactions = q(SELECT pg_stat_get_db_xact_commit(oid) FROM pg_database WHERE datname = 'postgres');
sql("SELECT count(outbox_subscribe('none ' || n, '" . $receiver->url('/ok/none') . "', topics => '{large}', filter => '\$.n < 0')) FROM generate_series(1, 100) n");
wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition', 'many follow the head');
sql('SELECT pg_sleep(1.5)');    # statistics are reported once in a second
my $made = sql($transactions);
sql(q(SELECT count(outbox_enqueue('large', jsonb_build_object('n', 0, 'x', repeat('x', 100000)))) FROM generate_series(1, 500)));
wait_until($node, q(SELECT count(*) = 100 FROM outbox_subscriptions WHERE filtered = 500), 'the payload of an event is read once for many');
cmp_ok(sql($transactions) - $made, '<', 400, 'so a read has several events');
sql("SELECT count(outbox_unsubscribe('none ' || n)) FROM generate_series(1, 100) n");

# --- filters that take too long

subscribe($node, $receiver, '/ok/pairs', topics => q('{costly}'), filter => q('$.p[*] == $.q[*]'));
subscribe($node, $receiver, '/ok/slow', topics => q('{costly}'), filter => q('exists($.p[*] ? (exists($.p[*] ? (@ < 0))))'));
subscribe($node, $receiver, '/ok/earlier', topics => q('{costly}'), filter => q('$.p[*] == $.q[*]'), start => q('earliest'));
subscribe($node, $receiver, '/ok/light', topics => q('{costly,light}'));
my $patient = worker_pid($node, 'relay');
sql(q(SELECT outbox_enqueue('costly', jsonb_build_object('n', 1, 'p', jsonb_agg(i), 'q', jsonb_agg(-i))) FROM generate_series(1, 40000) i));
enqueue('light', '{"n": 2}');
enqueue('costly', '{"n": 3, "p": [1, -2], "q": [1]}');
$receiver->wait_for('light', events => 3);
is(join(' ', sort split / /, numbers('light')), '1 2 3', 'another subscription has its events');
for my $name (qw(pairs slow earlier))
{
	$receiver->wait_for($name, events => 1);
	is(numbers($name), '3', "$name: an event that takes too long does not match, and later ones do");
	wait_for_state($name, 'filtered = 1 AND filter_errors = 1 AND delivered = 1', 'it is counted as an error');
}

# One that reads for itself, and needs long for each of several events.
sql(q(SELECT count(outbox_enqueue('lagging', (SELECT jsonb_agg(i) FROM generate_series(1, 20000) i))) FROM generate_series(1, 4)));
subscribe($node, $receiver, '/ok/lagging', topics => q('{lagging}'), filter => q('exists($[*] ? (exists($[*] ? (@ < 0))))'), start => q('earliest'));
my %turns;
my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
my $watcher = session($node);
while (time() < $until && counts('lagging') ne '4|4')
{
	my $turn = $watcher->query_safe(q(SELECT since FROM outbox_turns() t JOIN outbox_subscription s ON s.id = t.subscription WHERE name = 'lagging'));
	$turns{$turn} = 1 if $turn ne '';
}
finish($watcher, 'SELECT 1');
is(counts('lagging'), '4|4', 'all of them are left out');
cmp_ok(scalar keys %turns, '>', 2, 'but not in one turn of the relay');
is(worker_pid($node, 'relay'), $patient, 'by the same relay');
unlike(slurp_file($node->logfile), qr/(WARNING|ERROR): /, 'whose log has no message about it');

# --- a filter for which the memory is not enough

subscribe($node, $receiver, '/ok/spared', topics => q('{spared,greedy}'));
subscribe($node, $receiver, '/ok/greedy', topics => q('{spared,greedy}'), filter => q('$.**.**.**.** == 1'));
enqueue('spared', '{"n": 1}');
$receiver->wait_for('spared', events => 1);
wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition', 'all follow the head');
my $relay = worker_pid($node, 'relay');
my ($size_kb) = slurp_file("/proc/$relay/status") =~ /VmSize:\s+(\d+)/;
system_or_bail('prlimit', "--pid=$relay", '--as=' . 1024 * ($size_kb + SPARE_KB));
enqueue('greedy', '[' x DEEP . ']' x DEEP);
for my $n (2 .. 4)
{
	enqueue('spared', qq({"n": $n}));
	$receiver->wait_for('spared', events => $n + 1);
}
wait_for_state('greedy', q(state = 'stuck' AND reason = 'out of memory'), 'it is stuck');
wait_for_state('spared', 'delivered = 5 AND lag_events = 0', 'another one is not');
is(worker_pid($node, 'relay'), $relay, 'it is served by the same relay');
is(sql("SELECT backend_xid IS NULL FROM pg_stat_activity WHERE pid = $relay"), 't', 'whose transactions have ended');
sql(q(SELECT outbox_unsubscribe('greedy')));

# --- the counts stay

my $before = sql('SELECT name, filtered, filter_errors FROM outbox_subscriptions ORDER BY name');
$node->restart;
wait_for_pass($node);
is(sql('SELECT name, filtered, filter_errors FROM outbox_subscriptions ORDER BY name'), $before, 'a restart changes no count');

done_testing();
