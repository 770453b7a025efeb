# Transactions begin, draw positions and end in the middle of a relay's pass,
# and between the steps of a commit.  If this fails, the relay reads the
# highest position, the set of open transactions, the transactions and the rows
# in a wrong order: an event is lost, is sent twice, or waits for the relay's
# timer of 5 s.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant {
	ARRIVAL_S => 10,
	WAKE_S => 3,    # before the timer
};

# Only sessions that ask for it wait for the standby.  The timer of the deadlock
# detector wakes a process some time after it has got its lock.
my $receiver = Receiver->start;
my $node = start_server('relay_pass', allows_streaming => 1, conf => <<'EOF');
synchronous_commit = local
deadlock_timeout = 1min
EOF
my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->backup('base');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
alter_system('synchronous_standby_names', q('*'));
$node->poll_query_until('postgres', q(SELECT sync_state = 'sync' FROM pg_stat_replication)) or die 'the standby is not synchronous';
my ($locker, $other) = map { session($node) } 1 .. 2;

# A new subscription to a topic of the same name.
sub topic
{
	my ($name) = @_;
	subscribe($node, $receiver, "/ok/$name", topics => "'{$name}'");
	return $name;
}

sub enqueue
{
	my ($session, $topic, $number) = @_;
	$session->query_safe("SELECT outbox_enqueue('$topic', '{\"n\": $number}')");
	return;
}

sub straggler
{
	my ($topic, $number) = @_;
	my $session = session($node);

	$session->query_safe('BEGIN');
	enqueue($session, $topic, $number);
	return $session;
}

# Makes the relay begin a pass, which stops at something that another session
# has locked.  No new connection may be needed before the pass goes on: it
# would take so long that the timer for the next pass is near.
sub hold_pass
{
	my ($relay, $lock, $wake) = @_;
	my $give_up_at = time() + ARRIVAL_S;

	wait_for_pass($node);
	$locker->query_safe("BEGIN; $lock");
	$wake->();
	until ($other->query_safe("SELECT count(*) FROM pg_locks WHERE pid = $relay AND NOT granted"))
	{
		die 'the relay waits for no lock' if time() > $give_up_at;
	}
	return;
}

# Runs something while a pass is about to read the highest position.  The lock
# that stops the relay also keeps others from drawing positions, so it is
# released while the relay is stopped by a signal.
sub before_highest
{
	my ($do) = @_;
	my $relay = worker_pid($node, 'relay');

	hold_pass($relay, 'ALTER SEQUENCE outbox_position_seq OWNER TO CURRENT_USER',
		sub { $other->query_safe('SELECT outbox_wake()') });
	kill('STOP', $relay);
	$locker->query_safe('ROLLBACK');
	$do->();
	kill('CONT', $relay);
	return;
}

# Runs something while a pass has its snapshot, but has read nothing with it
# yet.
sub after_snapshot
{
	my ($wake, $do) = @_;

	hold_pass(worker_pid($node, 'relay'), 'LOCK TABLE outbox_home IN ACCESS EXCLUSIVE MODE', $wake);
	$do->();
	$locker->query_safe('ROLLBACK');
	return;
}

# --- the highest position, then the set of open transactions, then the snapshot

my $topic = topic('open');
my $open;
before_highest(sub {
	$open = straggler($topic, 1);
	enqueue_numbers($node, $topic, 2);
});
$receiver->wait_for($topic, events => 1, ARRIVAL_S);
finish($open, 'COMMIT');
$receiver->wait_for($topic, events => 2, ARRIVAL_S);
is($receiver->sorted_numbers($topic), '1 2', 'a transaction that takes a position before the highest is read');

$topic = topic('ended');
before_highest(sub { enqueue_numbers($node, $topic, 1) });
$receiver->wait_for($topic, events => 1, ARRIVAL_S);
is($receiver->sorted_numbers($topic), '1', 'a transaction that ends before the highest is read');

# --- then everything by that snapshot

$topic = topic('snapshot');
$open = straggler($topic, 1);
enqueue_numbers($node, $topic, 2);
$receiver->wait_for($topic, events => 1, ARRIVAL_S);
wait_for_pass($node);
after_snapshot(
	sub { enqueue($open, $topic, 3); enqueue($other, $topic, 4) },
	sub { finish($open, 'COMMIT') });
$receiver->wait_for($topic, events => 4, ARRIVAL_S);
wait_for_pass($node);
is($receiver->sorted_numbers($topic), '1 2 3 4', 'a straggler that ends after the snapshot');

# --- and a second check for ended transactions

wait_until($node, "SELECT delivered = 4 FROM outbox_subscriptions WHERE name = '$topic'", 'nothing is left to do');
after_snapshot(sub { $other->query_safe('SELECT outbox_wake()') }, sub { enqueue($other, $topic, 5) });
ok($receiver->wait_for($topic, events => 5, WAKE_S), 'what ends during a pass has another one begin');

# --- a commit: visible, then out of the set of open transactions, then the relay is woken

$topic = topic('waits');
my $slow = straggler($topic, 1);
my $pid = $slow->query_safe('SELECT pg_backend_pid()');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$slow->query_safe('SET synchronous_commit = remote_apply');
$slow->query_until(qr/committing/, "\\echo committing\nCOMMIT;\n");
$node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid");
enqueue_numbers($node, $topic, 2);
$receiver->wait_for($topic, events => 1, ARRIVAL_S);
is($receiver->sorted_numbers($topic), '2', 'a commit that waits for a standby holds nobody up');
wait_for_pass($node);
sql("SELECT pg_cancel_backend($pid)");
ok($receiver->wait_for($topic, events => 2, WAKE_S), 'once it is visible it wakes the relay');
$slow->quit;
is($receiver->sorted_numbers($topic), '1 2', 'and nothing of it was passed');

$_->quit for $locker, $other;
done_testing();
