# Subscriptions that are read: outbox_wait sleeps without a snapshot or locks
# and is woken by commits; readers that process events in their transactions
# see each event once, in order per key, whatever crashes.  If this fails,
# VACUUM is held up, readers are late, or effects happen twice or never.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;
use Time::HiRes qw(time);

my $node = start_server('pull');

sub waiting
{
	my ($pid) = @_;
	return "SELECT wait_event_type = 'Extension' AND backend_xmin IS NULL AND state = 'active'"
	  . " AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'relation')"
	  . " FROM pg_stat_activity a WHERE a.pid = $pid";
}

# --- a reader sleeps, and is woken

sql("SELECT outbox_subscribe('r', url => NULL, topics => '{t.*}', retry_schedule => '{0 s, 3 s}')");
my $reader = session($node);
my $pid = $reader->query_safe('SELECT pg_backend_pid()');
my $until = 'outbox_wait_ends';

sub start_waiting
{
	my ($timeout) = @_;
	$reader->query_until(qr/waits/, "\\echo waits\nCALL outbox_wait('r', '$timeout');\n\\echo $until\n");
	wait_until($node, waiting($pid), 'the reader sleeps without snapshot or relation lock');
	return;
}

sub end_waiting
{
	my $start = time;
	$reader->query_until(qr/$until/, '');
	return time - $start;
}

# What the session has printed to stderr since the last call.
sub errors
{
	$reader->query('SELECT 1');
	my $errors = $reader->{stderr};
	$reader->{stderr} = '';
	return $errors;
}

# Acknowledges the batch that is out.
my $ack = q(SELECT outbox_ack('r', token) FROM idempotency_internal.outbox_partition);

start_waiting('60 s');
sql(q(SELECT outbox_enqueue('other', '1')));
sql(q(SELECT outbox_enqueue('t.a', '1')));
cmp_ok(end_waiting(), '<', 3, 'a commit wakes it before it would look by itself');
is($reader->query_safe(q(SELECT count(*) FROM outbox_fetch('r', lease => '1 h'))), 1, 'there is something to fetch');
sql(q(SELECT outbox_enqueue('t.a', '2')));
start_waiting('60 s');
sql($ack);
cmp_ok(end_waiting(), '<', 3, 'so does the acknowledgement of the batch before');
is($reader->query_safe(q(SELECT payload FROM outbox_fetch('r', lease => '2 s'))), 2, 'it fetches the next one');
start_waiting('60 s');
cmp_ok(end_waiting(), '<', 4, 'the end of a lease wakes it');
is($reader->query_safe(q(SELECT count(*) FROM outbox_fetch('r'))), 0, 'which counts as a failed attempt');
start_waiting('60 s');
cmp_ok(end_waiting(), '<', 10, 'so does the time of a retry');
is($reader->query_safe(q(SELECT attempt FROM outbox_fetch('r'))), 2, 'which it fetches');
sql($ack);

my $holder = session($node);
$holder->query_safe(q(BEGIN; SELECT outbox_enqueue('t.a', '3')));
start_waiting('60 s');
$holder->query_safe('COMMIT');
cmp_ok(end_waiting(), '<', 3, 'so does a transaction that was open for long');
is($reader->query_safe(q(SELECT payload FROM outbox_fetch('r'))), 3, 'which it fetches');
sql($ack);
start_waiting('1 s');
cmp_ok(end_waiting(), '<', 4, 'the timeout ends the wait');

# --- what ends a wait besides

start_waiting('60 s');
sql("SELECT pg_cancel_backend($pid)");
end_waiting();
like(errors(), qr/canceling statement/, 'it can be cancelled');
start_waiting('60 s');
sql(q(SELECT outbox_unsubscribe('r')));
end_waiting();
like(errors(), qr/subscription "r" does not exist/, 'the end of the subscription ends the wait');
sql("SELECT outbox_subscribe('r', url => NULL)");
start_waiting('60 s');
sql('DROP EXTENSION idempotency');
pass('a reader that waits does not block DROP EXTENSION');
end_waiting();
like(errors(), qr/extension "idempotency" is not installed|does not exist/, 'and notices it');
$_->quit for $reader, $holder;

# --- exactly once, in the transactions of the readers

sql('CREATE EXTENSION idempotency');
wait_for_workers($node);
sql(<<'EOF');
SELECT outbox_subscribe('shop', url => NULL, topics => '{order}', partitions => 3,
	retry_schedule => array_fill(interval '0', ARRAY[100]));
CREATE TABLE orders (key text PRIMARY KEY, n int);
INSERT INTO orders SELECT 'k' || k, 0 FROM generate_series(0, 9) k;
CREATE TABLE effects (at bigserial, key text, n int);
-- Orders of a key commit one after another.
CREATE FUNCTION produce() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	chosen text := 'k' || floor(random() * 10)::int;
	made   orders;
BEGIN
	UPDATE orders SET n = n + 1 WHERE key = chosen RETURNING * INTO made;
	PERFORM outbox_enqueue('order', to_jsonb(made.n), key => made.key);
	PERFORM pg_sleep(0.2) WHERE random() < 0.01;
	IF random() < 0.1 THEN
		RAISE EXCEPTION 'no money';
	END IF;
END
$$;
CREATE FUNCTION consume(trouble float) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	event  record;
	batch  bigint;
	failed bigint[] := '{}';
	keys   text[] := '{}';
	done   int := 0;
BEGIN
	FOR event IN SELECT * FROM outbox_fetch('shop', 1 + floor(random() * 30)::int) LOOP
		batch := event.token;
		IF event.key = ANY (keys) OR random() < trouble THEN
			failed := failed || event.position;
			keys := keys || event.key;
		ELSE
			INSERT INTO effects (key, n) VALUES (event.key, event.payload::int);
			done := done + 1;
		END IF;
	END LOOP;
	IF batch IS NOT NULL THEN
		PERFORM outbox_ack('shop', batch, failed);
	END IF;
	IF random() < 10 * trouble THEN
		RAISE EXCEPTION 'the reader fails';
	END IF;
	RETURN done;
END
$$;
CREATE PROCEDURE repeat(call text) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		BEGIN
			EXECUTE 'SELECT ' || call;
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
		COMMIT;
	END LOOP;
END
$$;
EOF

for my $round (1 .. 3)
{
	my @sessions = map { session($node) } 1 .. 6;
	my $before = sql('SELECT count(*) FROM effects');

	for my $i (0 .. 5)
	{
		my $call = $i < 3 ? 'produce()' : 'consume(0.02)';
		$sessions[$i]->query_until(qr/runs/, "\\echo runs\nCALL repeat('$call');\n");
	}
	wait_until($node, "SELECT count(*) > $before + 300 FROM effects", 'events have effects');
	$node->stop('immediate');
	eval { $_->quit } for @sessions;
	$node->start;
}
$node->poll_query_until('postgres',
	'SELECT consume(0) + consume(0) + consume(0) = 0 AND (SELECT sum(n) FROM orders) <= (SELECT count(*) FROM effects)')
  or diag(sql('SELECT * FROM outbox_subscriptions'));
is(sql('SELECT count(*) FROM (SELECT FROM effects GROUP BY key, n HAVING count(*) > 1) twice'), 0, 'nothing has its effect twice');
is(sql('SELECT count(*) FROM effects'), sql('SELECT sum(n) FROM orders'), 'and all that was committed has it once');
is(sql('SELECT count(*) FROM (SELECT n, row_number() OVER (PARTITION BY key ORDER BY at) AS place FROM effects) e WHERE n <> place'),
	0, 'in order per key');
is(sql('SELECT dead + waiting + parked FROM outbox_subscriptions'), 0, 'nothing is left');

# --- a copy of the database hands out nothing

sql('UPDATE idempotency_internal.outbox_home SET system_identifier = 1');
sql(q(SELECT outbox_enqueue('order', '1', key => 'k')));
is(error_code($node, 'postgres', q(SELECT * FROM outbox_fetch('shop'))), '55000', 'a copy hands out nothing');
is(error_code($node, 'postgres', q(CALL outbox_wait('shop'))), '55000', 'and there is nothing to wait for');
sql('SELECT outbox_adopt()');
is(sql(q(SELECT count(*) FROM outbox_fetch('shop'))), 1, 'until it is adopted');

done_testing();
