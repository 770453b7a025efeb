# An answer that has come while the relay was busy is no timeout, however long
# that took.  If this fails, events that were accepted are sent again whenever
# the machine is slow, and count as failed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant { EVENTS => 8, TIMEOUT_S => 2 };

my $receiver = Receiver->start;
my $node = start_server('answered_meanwhile');

subscribe($node, $receiver, '/hold/held', topics => "'{held}'", timeout => "'@{[ TIMEOUT_S ]} s'", retry_schedule => "'{0 s,0 s}'");
my $relay = sql(q(SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'idempotency relay%'));
enqueue_numbers($node, 'held', 1 .. EVENTS);
$receiver->wait_for('held', requests => EVENTS);

# A relay that is stopped notices nothing, as one that waits for a slow disk.
ok(kill('STOP', $relay), 'the relay is stopped while requests are in flight');
$receiver->release('held');
sleep(TIMEOUT_S + 1);
kill('CONT', $relay);

wait_until($node, 'SELECT delivered = ' . EVENTS . " AND lag_events = 0 FROM outbox_subscriptions WHERE name = 'held'",
	'all events are delivered');
is($receiver->sorted_numbers('held'), join(' ', 1 .. EVENTS), 'each of them was sent once');
is(sql('SELECT count(*) FROM outbox_attempt'), 0, 'no attempt has failed');

done_testing();
