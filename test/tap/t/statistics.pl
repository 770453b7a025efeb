# What monitoring systems collect: workers, requests and times of each
# subscription, reservations.  If this fails, graphs and alarms are wrong: a
# worker that fails again and again, or an endpoint that answers 500, is not
# seen.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant {
	ENTRIES_MAX => 4096,    # TRAFFIC_ENTRIES_MAX
	BOUNDS => 17,           # of a histogram
};

my @answers = qw(2xx 4xx 410 429 5xx other);
my $receiver = Receiver->start;
my $node = start_server('statistics', conf => "idempotency.sweep_interval = 100ms\nmax_prepared_transactions = 2");

# The counts of a subscription, those that are not 0, as "2xx 3, timeouts 1".
sub counts
{
	my ($name, $db) = @_;
	my @columns = ((map { "answered_$_" } @answers), 'timeouts', 'connection_errors');
	my @counts = split /\|/, sql('SELECT ' . join(', ', @columns) . " FROM outbox_stats WHERE name = '$name'", $db);

	return join(', ', map { $counts[$_] ? ($columns[$_] =~ s/answered_//r) . " $counts[$_]" : () } 0 .. $#columns);
}

sub counts_are
{
	my ($name, $wanted, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for (1 .. 600)
	{
		last if counts($name) eq $wanted;
		select(undef, undef, undef, 0.1);
	}
	return is(counts($name), $wanted, $what);
}

# --- subscriptions: each kind of answer

my %kinds = (
	'/ok/good' => '2xx 1', '/fail/wrong' => '5xx 1', '/gone/left' => '410 1', '/refuse/refused' => '4xx 1',
	'/many-3600/busy' => '429 1', '/redirect/moved' => 'other 1', '/hang/slow' => 'timeouts 1',
	'/drop/closed' => 'connection_errors 1', '/garbage/strange' => 'connection_errors 1');

sub name_of { return $_[0] =~ m{([^/]+)$} ? $1 : die }

subscribe($node, $receiver, $_, topics => "'{each}'", timeout => "'1 s'", retry_schedule => "'{0 s, 1 h}'") for sort keys %kinds;
is(sql('SELECT count(*) FROM outbox_stats WHERE answered_2xx = 0'), keys(%kinds), 'at first nothing was sent');
is(sql('SELECT count(*) FROM outbox_latency'), '0', 'and nothing was measured');
enqueue_numbers($node, 'each', 1);
counts_are(name_of($_), $kinds{$_}, "$_: one request") for sort keys %kinds;

is(sql(q(SELECT count(*), min(le), max(le), max(count) FROM outbox_latency WHERE name = 'good' AND measure = 'delivery')),
	BOUNDS . '|0.005|Infinity|1', 'a delivery has a histogram');
is(sql(q(SELECT count(*) FROM outbox_latency WHERE name = 'wrong' AND measure = 'delivery' AND count > 0)), '0',
	'an event that is not accepted is not in it');
is(sql(q(SELECT bool_and(total = requests) FROM (
		SELECT l.count AS total, answered_2xx + answered_4xx + answered_410 + answered_429 + answered_5xx
			+ answered_other + timeouts + connection_errors AS requests
		FROM outbox_stats JOIN outbox_latency l USING (name) WHERE l.measure = 'request' AND l.le = 'Infinity') s)),
	't', 'each request is in the other histogram');
is(sql(q(SELECT count FROM outbox_latency WHERE name = 'slow' AND measure = 'request' AND le = 0.5)), '0',
	'one that times out is not among the fast ones');
is(sql(q(SELECT request_seconds BETWEEN 1 AND 30 FROM outbox_stats WHERE name = 'slow')), 't', 'its time is added');
is(sql(q(SELECT count(*) FROM (SELECT count < lag(count) OVER (PARTITION BY name, measure ORDER BY le) AS falls
		FROM outbox_latency) s WHERE falls)), '0', 'no histogram falls');

# --- the time of a delivery

subscribe($node, $receiver, '/told/again', topics => "'{again}'", retry_schedule => "'{0 s, 2 s}'");
sql(q(SELECT outbox_enqueue('again', '{"fail": 1}')));
counts_are('again', '2xx 1, 5xx 1', 'an event is accepted when it is sent again');
is(sql(q(SELECT delivery_seconds BETWEEN 2 AND 60 AND request_seconds < delivery_seconds FROM outbox_stats WHERE name = 'again')),
	't', 'the wait for the retry is a part of its time');
subscribe($node, $receiver, '/ok/later', topics => "'{later}'");
sql(q(SELECT outbox_enqueue('later', '{}', deliver_at => clock_timestamp() + interval '5 s')));
counts_are('later', '2xx 1', 'an event is sent at its time');
cmp_ok(sql(q(SELECT delivery_seconds FROM outbox_stats WHERE name = 'later')), '<', 4.5, 'and only what comes after that counts');

# --- stock

sub stock_is
{
	my ($wanted, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sql('SELECT reserved, insufficient, queued, confirmed, cancelled, expired, waiting, overdue, counters_used, counters_in_use FROM stock_stats'),
		$wanted, $what);
}

stock_is('0|0|0|0|0|0|0|0|0|0', 'no reservation so far');
sql(q(SELECT stock_receive('hat', 10), stock_receive('cap', 1)));
sql(q(SELECT stock_reserve('hat', 1, 'a'), stock_reserve('hat', 1, 'b'), stock_reserve('hat', 1, 'c', ttl => '1 s')));
sql(q(SELECT stock_reserve('hat', 1, 'a')));
sql(q(SELECT stock_reserve('hat', 100, 'd'), stock_reserve('none', 1, 'e')));
sql(q(SELECT stock_confirm('a'), stock_confirm('a'), stock_cancel('b'), stock_cancel('b')));
wait_until($node, 'SELECT expired = 1 FROM stock_stats', 'one expires');
stock_is('3|2|0|1|1|1|0|0|3|0', 'each answer counts once, repeated calls do not');
sql(q(SELECT stock_reserve('cap', 1, 'f'), stock_reserve('cap', 1, 'g', wait => true)));
stock_is('4|2|1|1|1|1|1|0|3|0', 'one waits');
sql(q(SELECT stock_cancel('f')));
wait_until($node, 'SELECT waiting = 0 FROM stock_stats', 'until there is enough');
stock_is('5|2|1|1|2|1|0|0|3|0', 'then it is reserved');
sql(q(BEGIN; SELECT stock_reserve('hat', 1, 'h'); PREPARE TRANSACTION 'open'));
is(sql('SELECT counters_in_use FROM stock_stats'), '1', 'an open transaction keeps a counter');
sql(q(ROLLBACK PREPARED 'open'));
is(sql('SELECT reserved, counters_in_use FROM stock_stats'), '6|0', 'what is rolled back stays counted');

# --- workers

sub worker { return sql("SELECT $_[1] FROM idempotency_workers WHERE kind = '$_[0]'") }

is(sql('SELECT kind, number, pid IS NOT NULL, starts, errors, last_error IS NULL FROM idempotency_workers ORDER BY 1'),
	"relay|1|t|1|0|t\nsweeper|1|t|1|0|t", 'each worker has started once, without an error');
my $before = worker('sweeper', 'last_success_at');
wait_until($node, "SELECT last_success_at > '$before' FROM idempotency_workers WHERE kind = 'sweeper'", 'the sweeper works');
sql('ALTER TABLE idem_ring RENAME TO hidden');
wait_until($node, q(SELECT errors > 0 AND last_error LIKE '%idem_ring%' FROM idempotency_workers WHERE kind = 'sweeper'),
	'an error of the sweeper is noted');
$before = worker('sweeper', 'last_success_at');
wait_until($node, q(SELECT errors > 1 FROM idempotency_workers WHERE kind = 'sweeper'), 'and another one');
is(worker('sweeper', 'last_success_at'), $before, 'meanwhile it has no success');
sql('ALTER TABLE hidden RENAME TO idem_ring');
sql('SELECT pg_reload_conf()');
wait_until($node, "SELECT last_success_at > '$before' FROM idempotency_workers WHERE kind = 'sweeper'", 'then it works again');
$before = worker('relay', 'last_success_at');
terminate_worker($node, 'relay');
wait_until($node, q(SELECT starts = 2 AND pid IS NOT NULL FROM idempotency_workers WHERE kind = 'relay'), 'a relay that was ended starts again');
wait_until($node, "SELECT last_success_at > '$before' FROM idempotency_workers WHERE kind = 'relay'", 'and works');

# --- states as numbers

is(sql('SELECT DISTINCT state, state_code FROM idempotency_segments ORDER BY 2'), "empty|0\ncurrent|1", 'of segments');
is(sql(q(SELECT name, state, state_code FROM outbox_subscriptions WHERE name IN ('good', 'left') ORDER BY 1)), "good|active|0\nleft|disabled|3",
	'of subscriptions');
sql(q(SELECT outbox_pause('good')));
is(sql(q(SELECT state, state_code FROM outbox_subscriptions WHERE name = 'good')), 'paused|1', 'one is paused');
sql(q(UPDATE outbox_subscription SET failing_since = now() WHERE name = 'moved'));
is(sql(q(SELECT state, state_code FROM outbox_subscriptions WHERE name = 'moved')), 'failing|2', 'one fails');
is(sql(q(SELECT DISTINCT state, state_code FROM idempotency_status() ORDER BY 2)), "ok|0\nwarning|1", 'of checks');

# --- who may see and reset that

sql('CREATE ROLE monitor IN ROLE pg_monitor; CREATE ROLE operator; CREATE ROLE app');
sql(q(SELECT idempotency_grant_operator('operator'), idempotency_grant('app')));
for my $view (qw(idempotency_workers outbox_stats outbox_latency stock_stats))
{
	is(error_code($node, 'postgres', "SET ROLE $_; SELECT * FROM $view"), '', "$view is for $_") for qw(monitor operator);
	is(error_code($node, 'postgres', "SET ROLE app; SELECT * FROM $view"), '42501', "$view is not for applications");
}
is(error_code($node, 'postgres', "SET ROLE $_; SELECT idempotency_stats_reset()"), '42501', "no reset by $_") for qw(monitor app);

sql(q(SELECT idem_claim('key')));
is(sql('SELECT claimed FROM idem_stats'), '1', 'a claim is counted');
my $now = sql('SELECT clock_timestamp()');
sql('SET ROLE operator; BEGIN; SELECT idempotency_stats_reset(); ROLLBACK');
counts_are('closed', '', 'after a reset there are no requests');
is(sql('SELECT count(*) FROM outbox_latency'), '0', 'no times');
stock_is('0|0|0|0|0|0|0|0|3|0', 'no reservations');
is(sql('SELECT claimed FROM idem_stats'), '0', 'no claims');
is(sql('SELECT kind, starts, errors FROM idempotency_workers ORDER BY 1'), "relay|1|0\nsweeper|1|0", 'and no errors');
is(sql("SELECT bool_and(since > '$now') FROM (SELECT since FROM outbox_stats UNION ALL SELECT since FROM stock_stats UNION ALL SELECT since FROM idem_stats) s"),
	't', 'counting began then');

# --- what has ended is forgotten

sql(q(SELECT outbox_unsubscribe(name) FROM outbox_stats));
sql('SELECT outbox_expire()');
is(sql('SELECT count(*) FROM outbox_traffic()'), '0', 'of subscriptions that were removed nothing stays');
sql('CREATE DATABASE other');
sql('CREATE EXTENSION idempotency', 'other');
subscribe($node, $receiver, '/ok/other', db => 'other');
sql(q(SELECT outbox_enqueue('t', '{}')), 'other');
ok($node->poll_query_until('other', 'SELECT answered_2xx = 1 FROM outbox_stats'), 'another database counts for itself');
is(sql('SELECT count(*) FROM outbox_traffic()'), '0', 'which this one does not see');
sql('DROP EXTENSION idempotency', 'other');
sql('CREATE EXTENSION idempotency', 'other');
subscribe($node, $receiver, '/ok/new', db => 'other');
is(counts('new', 'other'), '', 'an extension that was created again begins at 0');
sql('DROP DATABASE other WITH (FORCE)');

# --- more subscriptions than there is room for

my $url = $receiver->url('/ok/many');
my $count = ENTRIES_MAX + 50;
sql("SELECT count(outbox_subscribe('s' || n, '$url', topics => '{many}')) FROM generate_series(1, $count) n");
sql(q(SELECT outbox_enqueue('many', '{}')));
wait_until($node, 'SELECT min(delivered) = 1 FROM outbox_subscriptions', 'all get the event');
is(sql('SELECT count(*), sum(answered_2xx) FROM outbox_stats WHERE answered_2xx > 0'), ENTRIES_MAX . '|' . ENTRIES_MAX,
	'as many as there is room for are counted');
sql(q(SELECT outbox_unsubscribe(name) FROM outbox_stats WHERE answered_2xx > 0));
sql('SELECT outbox_expire()');
sql(q(SELECT outbox_enqueue('many', '{}')));
wait_until($node, 'SELECT count(*) = 50 AND min(answered_2xx) = 1 FROM outbox_stats', 'then there is room for the others');

done_testing();
