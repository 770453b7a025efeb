# What a relay's head has reached never goes back, since rows of partitions rely
# on its row.  Nor does a relay go on with what it knows of an extension that was
# dropped and created again.  If this fails, events are skipped when the server
# stops at that moment.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant EVENTS => 20;

my $receiver = Receiver->start;
my $node = start_server('head_back');

sub follows
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, 'SELECT p.head = 0 FROM outbox_partition p JOIN outbox_subscription s ON s.id = p.subscription'
		  . " WHERE s.name = '$name'", "$name follows the head");
}

# --- no feed follows it, and a young transaction has a low bound

subscribe($node, $receiver, '/ok/first', topics => q('{t}'));
enqueue_numbers($node, 't', 1 .. EVENTS);
$receiver->wait_for('first', events => EVENTS);
wait_until($node, 'SELECT position = (SELECT last_value FROM outbox_position_seq) FROM outbox_head', 'the head has read all');
follows('first');
$node->restart;
worker_pid($node, 'relay');
wait_for_pass($node);

# While this row is locked, the head is not recorded.
my $locker = session($node);
my $late = session($node);
my $other = session($node);
$locker->query_safe('BEGIN; SELECT FROM outbox_partition FOR UPDATE');
sql(q(SELECT outbox_pause('first')));
wait_for_pass($node);

# After a restart the highest position is not known until the first one is
# drawn, so the bound of this transaction is 1.
my $secret = $receiver->new_secret('early');
my $url = $receiver->url('/hold/early');
$late->query_safe(q(BEGIN; SELECT outbox_enqueue('t', '{"n": 100}')));
$other->query_safe("SELECT outbox_subscribe('early', '$url', topics => '{t}', secret => '$secret', start => 'earliest')");
my $reached = q(SELECT max(r.position) FROM outbox_reached r JOIN outbox_subscription s ON s.id = r.subscription WHERE s.name = 'early');
my @reached = map { $other->query_safe($reached) } 1 .. 100;
is(scalar(grep { $_ > 0 } @reached), 0, 'a subscription that has got nothing has reached nothing');
$_->quit for $locker, $late, $other;
$receiver->release('early');
$receiver->wait_for('early', events => EVENTS);

# --- the extension is dropped and created again in one transaction

subscribe($node, $receiver, '/hang/old', topics => q('{t}'), timeout => q('1 h'));
enqueue_numbers($node, 't', 1);
$receiver->wait_for('old', requests => 1);
my $relay = worker_pid($node, 'relay');
$node->safe_psql('postgres', 'BEGIN; DROP EXTENSION idempotency CASCADE; CREATE EXTENSION idempotency; COMMIT');
subscribe($node, $receiver, "/ok/new$_", topics => q('{t}')) for 1 .. 3;
enqueue_numbers($node, 't', 1 .. EVENTS);
$receiver->wait_for("new$_", events => EVENTS) for 1 .. 3;
isnt(worker_pid($node, 'relay'), $relay, 'another relay serves it');
follows('new3');

done_testing();
