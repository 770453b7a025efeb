# Events of a transaction that was open for long, with many positions of others
# since, are found little by little: requests are sent and answered meanwhile.
# If this fails, events of such a transaction are lost, or nothing is sent and no
# answer is taken while the relay reads.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant {
	PARTITIONS => 48,
	POSITIONS => 500000,
	EVENTS => 60,
};

my $receiver = Receiver->start;
my $node = start_server('straggler_window', conf => "max_wal_size = '1GB'\n");

subscribe($node, $receiver, '/ok/wide', topics => "'{late}'", partitions => PARTITIONS);
subscribe($node, $receiver, '/ok/good', topics => "'{good}'", timeout => "'1 s'", retry_schedule => "'{0 s,0 s}'");

# --- a transaction has an event before and an event after all others

my $late = session($node);
$late->query_safe('BEGIN');
$late->query_safe("SELECT count(outbox_enqueue('late', jsonb_build_object('n', n))) FROM generate_series(1, 100) n");
enqueue_numbers($node, 'good', 0);
$receiver->wait_for('good', events => 1);
sql("SELECT count(outbox_enqueue('noise', '1')) FROM generate_series(1, " . POSITIONS . ')');
$late->query_safe("SELECT count(outbox_enqueue('late', jsonb_build_object('n', n))) FROM generate_series(101, 200) n");
wait_until($node, 'SELECT min(position) >= ' . POSITIONS . ' FROM outbox_subscriptions', 'the log is read up to its end');
is(scalar($receiver->requests('wide')), 0, 'without the events of the open transaction');

# --- it ends

# How long it takes to read all of that, and how long the relay reads at a time.
my $all_ms = sql(<<'EOF');
CREATE FUNCTION read_all() RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
	began_at timestamptz := clock_timestamp();
BEGIN
	SET LOCAL enable_seqscan = off;
	PERFORM sum(position), count(topic) FILTER (WHERE xid = '3') FROM (
		SELECT * FROM outbox_event WHERE position > 0 ORDER BY position) e;
	RETURN extract(epoch FROM clock_timestamp() - began_at) * 1000;
END
$$;
SELECT read_all();
EOF
my $longest_ms = watch_relay($node);
$late->query_safe('COMMIT');
sql(<<'EOF');
CREATE PROCEDURE enqueue_good(count integer) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. count LOOP
		PERFORM outbox_enqueue('good', jsonb_build_object('n', i));
		COMMIT;
		PERFORM pg_sleep(0.05);
	END LOOP;
END
$$
EOF
sql('CALL enqueue_good(' . EVENTS . ')');
$receiver->wait_for('good', events => EVENTS + 1);
is($receiver->sorted_numbers('good'), join(' ', 0 .. EVENTS), 'another subscription gets each event once');
$receiver->wait_for('wide', events => 200);
wait_until($node, 'SELECT bool_and(delivered >= 61 AND waiting + dead = 0) FROM outbox_subscriptions',
	'the events of the transaction are delivered');
is($receiver->sorted_numbers('wide'), join(' ', 1 .. 200), 'each of them once');
cmp_ok($longest_ms->(), '<', $all_ms / 4, "the relay has read little at a time: it takes $all_ms ms to read all");
wait_until($node, 'SELECT count(*) = 0 FROM outbox_partition WHERE cardinality(stragglers) > 0',
	'and the transaction is forgotten');
$late->quit;

done_testing();
