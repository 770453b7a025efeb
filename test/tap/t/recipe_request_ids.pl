# "Coming from request ids in Redis": IN_PROGRESS, COMPLETED and FAILED, and
# problems that Redis leaves to its users: an owner that crashes between its
# effect and its state, and an owner that is late.  If this fails, a request is
# booked twice or not at all.
#
# Needs: docs/recipes/node_modules
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Program;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(sleep time);

use constant { SHORT_LEASE => '700 ms', LONGER_LEASE => '2 s', WAIT_S => 30, PAUSE_S => 0.05 };

my $node = start_server('bank', internal_path => 0);
my $receiver = Receiver->start;

prepare_recipe($node, 'request_ids.sql');

# A consumer that charges at a path of the receiver.
sub consumer
{
	my ($path, %env) = @_;
	return start_recipe('request_ids.js', as_shop($node),
		PAYMENT_URL => $receiver->url($path), %env);
}

# Passes a message to a consumer, and returns its answer.
sub deliver
{
	my ($consumer, $id) = @_;
	$consumer->say(qq({"id": "$id", "amount": 5}));
	return verdict($consumer, $id);
}

sub verdict
{
	my ($consumer, $id) = @_;
	my $verdict = $consumer->line($id);
	$verdict =~ s/^\Q$id\E //;
	return $verdict;
}

# Delivers a message as a broker does, until it is acknowledged.  Returns the
# last answer, and the one before.
sub deliver_until_ack
{
	my ($consumer, $id) = @_;
	my $until = time + WAIT_S;
	my ($verdict, $before) = ('', '');

	while ($verdict !~ /^ack/ && time < $until)
	{
		sleep PAUSE_S if $verdict;
		($before, $verdict) = ($verdict, deliver($consumer, $id));
	}
	return ($verdict, $before);
}

sub bookings
{
	my ($id) = @_;
	return sql("SELECT count(*) || ' by attempt ' || string_agg(attempt::text, ' ')"
		  . " FROM bookings WHERE request = '$id'") || '0';
}

sub state_of
{
	my ($id) = @_;
	return sql("SELECT state FROM idem_key WHERE scope = 'bookings' AND key = '$id'");
}

my $consumer = consumer('/switch/payments');

# --- the states

is(deliver($consumer, 'plain'), 'ack done 1', 'a new message is done and acknowledged');
is(deliver($consumer, 'plain'), 'ack completed', 'COMPLETED: its copy is acknowledged');
is(bookings('plain'), '1 by attempt 1', 'and booked once');
is(sql("SELECT expires_at BETWEEN now() + interval '23 h' AND now() + interval '24 h' FROM idem_key WHERE key = 'plain'"),
	't', 'it is remembered for the ttl');

my $slow = consumer('/hold/slow');
$slow->say('{"id": "long", "amount": 5}');
$receiver->wait_for('slow', requests => 1);
like(deliver($consumer, 'long'), qr/^nack in_progress (3\d|40)\b.* s$/,
	'IN_PROGRESS: the copy goes back, and is told how long the lease may last');
is(bookings('long'), '0', 'nothing is booked yet');
$receiver->release('slow');
is(verdict($slow, 'long'), 'ack done 1', 'the owner finishes');
is(deliver($consumer, 'long'), 'ack completed', 'and the copy is acknowledged');

$receiver->switch('payments', 'fail');
is(deliver($consumer, 'retry'), 'nack failed', 'FAILED: the message goes back');
is(state_of('retry'), 'r', 'and may be processed again');
$receiver->switch('payments', 'ok');
is(deliver($consumer, 'retry'), 'ack done 2', 'at once, as the second attempt');
is(bookings('retry'), '1 by attempt 2', 'it is booked once');

$receiver->switch('payments', 'gone');
is(deliver($consumer, 'refused'), 'ack failed', 'a final failure is acknowledged');
$receiver->switch('payments', 'ok');
is(deliver($consumer, 'refused'), 'ack failed', 'and not tried again');
is(bookings('refused'), '0', 'nor booked');

# --- an owner that dies while it works

my $dying = consumer('/hold/dying', LEASE => LONGER_LEASE);
$dying->say('{"id": "crash", "amount": 5}');
$receiver->wait_for('dying', requests => 1);
my ($lease) = split /\|/, sql("SELECT lease_until, token FROM idem_key WHERE key = 'crash'");
wait_until($node, "SELECT lease_until > '$lease' FROM idem_key WHERE key = 'crash'",
	'an owner that lives renews its lease');
$dying->crash;
my ($verdict, $before) = deliver_until_ack($consumer, 'crash');
like($before, qr/^nack in_progress/, 'after its crash the message goes back while the lease lasts');
is($verdict, 'ack done 2', 'then the next owner takes it over');
is(bookings('crash'), '1 by attempt 2', 'and books it once');

# --- an owner that dies between its effect and its state
#
# Its booking is inserted, and the key is locked, so that idem_complete waits.

$dying = consumer('/hold/between', LEASE => LONGER_LEASE);
$dying->say('{"id": "between", "amount": 5}');
$receiver->wait_for('between', requests => 1);
my $session = session($node);
$session->query_safe('BEGIN');
$session->query_safe("UPDATE idempotency_internal.idem_key_$_ SET lease_until = now() WHERE key = 'between'") for 0 .. 2;
$receiver->release('between');
wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_activity
	WHERE query LIKE '%idem_complete%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()),
	'a booking is inserted, and its state not yet written');
$dying->crash;
$session->query_safe('COMMIT');
is(bookings('between'), '0', 'a crash now leaves no booking');
($verdict) = deliver_until_ack($consumer, 'between');
is($verdict, 'ack done 2', 'the next owner does all of it');
is(bookings('between'), '1 by attempt 2', 'so it is booked once');

# --- an owner that is stopped for longer than its lease

my $late = consumer('/hold/late', LEASE => SHORT_LEASE);
$late->say('{"id": "late", "amount": 5}');
$receiver->wait_for('late', requests => 1);
$late->signal('STOP');
my $token = sql("SELECT token FROM idem_key WHERE key = 'late'");
($verdict) = deliver_until_ack($consumer, 'late');
is($verdict, 'ack done 2', 'a lease that has run out is taken over');
cmp_ok(sql("SELECT token FROM idem_key WHERE key = 'late'"), '>', $token, 'with a larger token');
$receiver->release('late');
$late->signal('CONT');
is(verdict($late, 'late'), 'nack taken_over', 'the late owner is refused');
is(bookings('late'), '1 by attempt 2', 'and what it had booked in the same transaction is undone');
is(state_of('late'), 'c', 'the new owner\'s state stands');
is(deliver($late, 'late'), 'ack completed', 'the late owner\'s copy is acknowledged in the end');

$session->quit;
done_testing();
