# Events that are cancelled, replaced, or that expire, on their way through a
# relay and to a reader.  If this fails, an event is sent that was cancelled or
# is too late, one that was not cancelled is lost, or a debounced one comes
# more than once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { EVENTS => 400, SPREAD_S => 3, CLIENTS => 6 };

my $receiver = Receiver->start;
my $node = start_server('scheduled');

sub state_of
{
	my ($name) = @_;
	return sql("SELECT waiting + parked, dead, delivered FROM outbox_subscriptions WHERE name = '$name'");
}

sub error_of
{
	my ($name, $n) = @_;
	return sql('SELECT last_error FROM outbox_dead JOIN outbox_event USING (position)'
		  . " WHERE subscription = '$name' AND payload ->> 'n' = '$n'");
}

# --- debounce

subscribe($node, $receiver, '/ok/debounced', topics => "'{debounced}'");
sql(q(SELECT outbox_enqueue('debounced', '{"n": 0}', dedup_key => 'page', replace => true, deliver_at => now() + interval '1 h')));
wait_until($node, 'SELECT count(*) = 1 FROM outbox_delivery', 'an event waits');
sql(qq(SELECT outbox_enqueue('debounced', '{"n": $_}', dedup_key => 'page', replace => true, deliver_at => now() + interval '3 s')))
  for 1 .. 20;
wait_until($node, "SELECT (SELECT delivered FROM outbox_subscriptions WHERE name = 'debounced') = 1"
	  . ' AND count(*) = 0 FROM outbox_delivery', 'after many events with one key, one is sent, and nothing is left');
is(join(' ', $receiver->numbers('debounced')), '20', 'it is the latest one');

# --- expired before the first attempt, or before the next one

subscribe($node, $receiver, '/switch/failing', topics => "'{failing}'", retry_schedule => "'{0 s,3 s,1 h}'");
$receiver->switch('failing', 'fail');
sql(q(SELECT outbox_enqueue('failing', '{"n": 1}', 'k', expires_at => now() + interval '2 s'),
	outbox_enqueue('failing', '{"n": 2}', 'k'), outbox_enqueue('failing', '{"n": 3}', 'other', expires_at => now() - interval '1 s')));
wait_until($node, "SELECT dead = 2 FROM outbox_subscriptions WHERE name = 'failing'", 'events have expired');
is(error_of('failing', 1), 'expired before it was sent', 'one of them before its second attempt');
is(sql('SELECT attempt, error FROM outbox_attempts WHERE position = (SELECT min(position) FROM outbox_dead)'),
	'1|answered 500', 'which leaves the first one in its history');
is(error_of('failing', 3), 'expired before it was sent', 'the other one before its first');
$receiver->wait_for('failing', requests => 2);
is(join(' ', map { $_->{data}{n} } $receiver->requests('failing')), '1 2', 'the next one of the key was tried, and the one that was too late was not');
like(slurp_file($node->logfile), qr/event \d+ is dead for subscription "failing" after attempt 0: expired before it was sent/,
	'the log has a line about it');
$receiver->switch('failing', 'ok');
sql("SELECT outbox_redrive('failing')");
wait_until($node, "SELECT dead + parked = 0 AND delivered >= 2 FROM outbox_subscriptions WHERE name = 'failing'",
	'an operator can send them all the same');

# --- expired in the memory of the relay

subscribe($node, $receiver, '/hold/queue', topics => "'{queue}'", max_in_flight => 1, ordered => 'false');
sql(q(SELECT outbox_enqueue('queue', '{"n": 1}'), outbox_enqueue('queue', '{"n": 2}', expires_at => now() + interval '300 ms'),
	outbox_enqueue('queue', '{"n": 3}'), outbox_enqueue('queue', '{"n": 4}', expires_at => now() + interval '1 h')));
$receiver->wait_for('queue', requests => 1);
sql('SELECT pg_sleep(0.4)');
is(state_of('queue'), '0|0|0', 'events wait in the memory of the relay');
$receiver->release('queue');
wait_until($node, "SELECT delivered = 3 FROM outbox_subscriptions WHERE name = 'queue'", 'then they are sent');
is(join(' ', $receiver->sorted_numbers('queue')), '1 3 4', 'except the one that has expired');
is(error_of('queue', 2), 'expired before it was sent', 'which is a dead letter');

# In order, the expired one does not keep the next one of its key.
subscribe($node, $receiver, '/hold/chain', topics => "'{chain}'", batch => 10, format => "'cloudevents'");
sql(q(SELECT outbox_enqueue('chain', '{"n": 1}', 'k')));
$receiver->wait_for('chain', requests => 1);
sql(q(SELECT outbox_enqueue('chain', '{"n": 2}', 'k', expires_at => now() + interval '200 ms'), outbox_enqueue('chain', '{"n": 3}', 'k')));
wait_for_pass($node);
sql('SELECT pg_sleep(0.3)');
$receiver->release('chain');
wait_until($node, "SELECT delivered = 2 AND dead = 1 FROM outbox_subscriptions WHERE name = 'chain'", 'the next one is sent');
is(error_of('chain', 2), 'expired before it was sent', 'and the expired one is not');

# --- events are cancelled while their times come, and relays go

subscribe($node, $receiver, '/ok/race', topics => "'{race}'");
sql(q(
	CREATE TABLE event (n int PRIMARY KEY, position bigint);
	CREATE TABLE answer (n int, cancelled boolean);
	CREATE TABLE got (position bigint);
	CREATE FUNCTION cancel_one() RETURNS void LANGUAGE sql AS $$
		INSERT INTO answer SELECT n, outbox_cancel(position) FROM event WHERE n = 1 + floor(random() * (SELECT count(*) FROM event))
	$$;
	CREATE FUNCTION read_some() RETURNS void LANGUAGE sql AS $$
		WITH batch AS (SELECT token, position FROM outbox_fetch('reader', 10)), kept AS (INSERT INTO got SELECT position FROM batch)
		SELECT outbox_ack('reader', max(token)) FROM batch HAVING count(*) > 0
	$$;
	SELECT outbox_subscribe('reader', NULL, '{race}');
));
sql("INSERT INTO event SELECT n, outbox_enqueue('race', jsonb_build_object('n', n), deliver_at => now() + random() * interval '@{[ SPREAD_S ]} s')"
	  . " FROM generate_series(1, @{[ EVENTS ]}) n");
my $cancel = $node->basedir . '/cancel.pgbench';
append_to_file($cancel, <<'SQL');
\set pause random(1, 100)
\set lucky random(1, 4)
BEGIN;
SELECT cancel_one();
\sleep :pause ms
\if :lucky = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL
my $read = $node->basedir . '/read.pgbench';
append_to_file($read, "SELECT read_some();\n\\sleep 5 ms\n");
my @pgbench = ('pgbench', '--no-vacuum', '--protocol' => 'simple', '--time' => SPREAD_S + 1, '--host' => $node->host,
	'--port' => $node->port);
my ($output, $read_output) = ('', '');
my $cancelling = IPC::Run::start([ @pgbench, '--client' => CLIENTS, '--file' => $cancel, 'postgres' ], '>&', \$output);
my $reading = IPC::Run::start([ @pgbench, '--client' => 2, '--file' => $read, 'postgres' ], '>&', \$read_output);
for (1 .. 3)
{
	sql('SELECT pg_sleep(0.8)');
	terminate_worker($node, 'relay');
}
ok($cancelling->finish, 'events were cancelled') || diag($output);
ok($reading->finish, 'while others were read') || diag($read_output);
wait_until($node, "SELECT bool_and(waiting = 0 AND lag_events = 0 AND in_flight = 0) FROM outbox_subscriptions WHERE name = 'race'",
	'all that is due was sent');
sql('SELECT read_some()') for 1 .. 100;

sql('CREATE TABLE sent (n int)');
sql("INSERT INTO sent SELECT unnest(string_to_array('@{[ $receiver->distinct_numbers('race') ]}', ' ')::int[])");
is(sql('SELECT string_agg(DISTINCT n::text, \' \') FROM sent JOIN answer USING (n) WHERE cancelled'), '', 'no event was sent that was cancelled');
is(sql('SELECT string_agg(DISTINCT n::text, \' \') FROM event JOIN got USING (position) JOIN answer USING (n) WHERE cancelled'), '',
	'nor was one read');
is(sql('SELECT string_agg(n::text, \' \') FROM event WHERE n NOT IN (SELECT n FROM sent) AND n NOT IN (SELECT n FROM answer WHERE cancelled)'),
	'', 'every other one was sent');
is(sql('SELECT string_agg(n::text, \' \') FROM event WHERE position NOT IN (SELECT position FROM got) AND n NOT IN (SELECT n FROM answer WHERE cancelled)'),
	'', 'and read');
is(sql('SELECT count(*) FROM (SELECT position FROM got GROUP BY 1 HAVING count(*) > 1) twice'), '0', 'once');
cmp_ok(sql('SELECT count(DISTINCT n) FROM answer WHERE cancelled'), '>', 20, 'many were cancelled');
cmp_ok(sql('SELECT count(*) FROM answer WHERE NOT cancelled'), '>', 20, 'and for many it was too late');
is(sql("SELECT count(*) FROM outbox_delivery WHERE topic = 'race'"), '0', 'nothing is left');

# --- one key, many sessions

sql(q(
	CREATE TABLE announced (key int, position bigint);
	CREATE FUNCTION announce() RETURNS void LANGUAGE sql AS $$
		INSERT INTO announced SELECT k, outbox_enqueue('once', jsonb_build_object('n', k), dedup_key => k::text)
		FROM (SELECT floor(random() * 20)::int AS k) AS one
	$$;
));
subscribe($node, $receiver, '/ok/once', topics => "'{once}'");
my $announce = $node->basedir . '/announce.pgbench';
append_to_file($announce, "\\set lucky random(1, 3)\nBEGIN;\nSELECT announce();\n\\if :lucky = 1\nROLLBACK;\n\\else\nCOMMIT;\n\\endif\n");
$node->command_ok([ 'pgbench', '--no-vacuum', '--client' => CLIENTS, '--transactions' => 100, '--file' => $announce, 'postgres' ],
	'many sessions announce the same');
is(sql('SELECT count(*) FROM announced WHERE position NOT IN (SELECT position FROM outbox_log)'), '0', 'who has committed has an event');
is(sql("SELECT count(*), count(DISTINCT payload) FROM outbox_log WHERE topic = 'once'"),
	join('|', (sql('SELECT count(DISTINCT key) FROM announced')) x 2), 'each is announced once');
wait_until($node, "SELECT delivered = (SELECT count(DISTINCT key) FROM announced) FROM outbox_subscriptions WHERE name = 'once'",
	'and delivered once');

done_testing();
