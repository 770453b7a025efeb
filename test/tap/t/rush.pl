# Several sessions commit one event after another, while the relay, which keeps
# up with them, is stopped for moments at any point: in each pass a transaction
# ends between two of its steps.  If this fails while relay_pass.pl passes, two
# steps are in the wrong order that no lock can separate, such as the copy of
# the set of open transactions and the snapshot, and events are lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time usleep);

use constant {
	SESSIONS => 8,
	RUSH_S => 3,
	STOP_US => 1000,
	GO_US => 20,
};

# With more slots it takes longer to copy that set; with a slow disk, to make
# commits durable after the snapshot.
my $receiver = Receiver->start;
my $node = start_server('rush', conf => <<'EOF');
max_connections = 20000
max_locks_per_transaction = 10
max_pred_locks_per_transaction = 10
fsync = on
EOF

# Events for a date in 100 years are recorded as soon as they are read, and
# need no receiver.  The relay must not fall behind: it would handle
# transactions that ended long ago.
sql(<<'EOF');
CREATE PROCEDURE rush(seconds integer) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
BEGIN
	WHILE clock_timestamp() < until LOOP
		IF (SELECT last_value - position < 30 FROM outbox_position_seq, outbox_partition) THEN
			PERFORM outbox_enqueue('t', '1', deliver_at => until + interval '100 years');
		END IF;
		PERFORM pg_sleep(0.0003);
		COMMIT;
	END LOOP;
END
$$
EOF

sub stop_now_and_then
{
	my ($pid, $until) = @_;

	while (time() < $until)
	{
		kill('STOP', $pid);
		usleep(STOP_US);
		kill('CONT', $pid);
		usleep(GO_US);
	}
	return;
}

# The number of events that were lost.
sub rush
{
	my ($commit) = @_;
	my @sessions = map { session($node) } 1 .. SESSIONS;

	for my $session (@sessions)
	{
		$session->query_safe("SET synchronous_commit = $commit");
		$session->query_until(qr/begun/, '\echo begun' . "\nCALL rush(" . RUSH_S . ");\n");
	}
	stop_now_and_then(worker_pid($node, 'relay'), time() + RUSH_S);
	for my $session (@sessions)
	{
		$session->query_safe('SELECT 1');
		$session->quit;
	}
	$node->poll_query_until('postgres', 'SELECT lag_events = 0 FROM outbox_subscriptions')
	  or die 'the relay has not come to the end of the log';
	wait_for_pass($node);
	return sql('SELECT count(*) FROM outbox_log WHERE position NOT IN (SELECT position FROM outbox_delivery)');
}

subscribe($node, $receiver, '/ok/rush');
wait_for_workers($node);
is(rush('on'), 0, 'no event is lost');
is(rush('off'), 0, 'nor of those who commit without waiting for the disk');
cmp_ok(sql('SELECT count(*) FROM outbox_log'), '>', 100, 'of many');

done_testing();
