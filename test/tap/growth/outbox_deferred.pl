# Deferred deliveries: what is read and changed of them costs as much as it
# returns or changes, and a step of the sweeper a constant.  If this fails, an
# outage of one receiver stops the sweeper, and so everything that expires, or
# makes an operator's functions useless just when they are needed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use Test::More;

my $sweeper = [ 'a step of the sweeper', 'SELECT idempotency_internal.outbox_expire(100)', 'constant' ];

# Subscription 1 has nearly all events; 2 has one of each kind.
my $subscribe = <<'SQL';
	SELECT outbox_subscribe(name, 'http://127.0.0.1:9/') FROM unnest('{busy, quiet}'::text[]) name;
	SELECT outbox_subscribe('read', NULL);
	SELECT setval('idempotency_internal.outbox_position_seq', 1000000);
SQL

# Deferred deliveries with the columns state, blocks_key, due_at, last_at, key
# of position i.
sub deferred
{
	my ($subscription, $columns, $rows) = @_;
	return <<SQL;
	INSERT INTO idempotency_internal.outbox_delivery
		(subscription, position, partition, attempts, last_status, last_error, created_at, topic, payload,
		 state, blocks_key, due_at, last_at, key)
	SELECT $subscription, i, 0, 3, 500, 'HTTP 500', now(), 't', '{}', $columns
	FROM $rows i;
	INSERT INTO idempotency_internal.outbox_attempt
		(subscription, position, attempt, at, duration_ms, status, error)
	SELECT $subscription, i, 1, now(), 1, 500, 'HTTP 500' FROM $rows i;
SQL
}
my $added = 'generate_series(:from, :to)';
my $one = 'generate_series(:from, :to, 1000000)';
my $dead = "'dead', false, NULL, now(), 'k' || i";
my $waiting = "'waiting', true, now() + interval '1 h', now(), 'k' || i";

growth('dead letters',
	base => $subscribe,
	rows => deferred(1, $dead, $added),
	worker => 1,
	calls => [$sweeper]);

growth('old dead letters',
	base => $subscribe,
	rows => deferred(1, "'dead', false, NULL, now() - interval '1 y', 'k' || i", $added),
	worker => 1,
	calls => [ $sweeper, [ 'a small step', 'SELECT idempotency_internal.outbox_expire(10)', 'constant' ] ]);

growth('dead letters',
	base => $subscribe,
	rows => deferred(1, $dead, $added) . deferred(2, $dead, $one),
	churn => 'UPDATE idempotency_internal.outbox_delivery SET attempts = attempts + 1',
	calls => [
		[ 'discard one', "SELECT outbox_discard('busy', '{7}')", 'constant' ],
		[ 'discard those of another subscription', "SELECT outbox_discard('quiet')", 'constant' ],
		[ 'redrive one', "SELECT outbox_redrive('busy', '{7}')", 'constant' ],
		[ 'redrive those of another subscription', "SELECT outbox_redrive('quiet')", 'constant' ],
		[ 'replay another subscription', "SELECT outbox_replay('quiet', 1)", 'constant' ],
		[ 'unsubscribe another', "SELECT outbox_unsubscribe('quiet')", 'constant' ],
		[ 'ping', "SELECT outbox_ping('busy')", 'constant' ],
		[ 'ping another subscription', "SELECT outbox_ping('quiet')", 'constant' ],
		[ 'retry', "SELECT outbox_retry('busy')", 'constant' ],
		[ 'cancel', 'SELECT outbox_cancel(7)', 'constant' ],
		[ 'a page', "SELECT * FROM outbox_dead_page('busy', after => 77)", 'constant' ],
		[ 'discard all', "SELECT outbox_discard('busy')", 'linear' ],
		[ 'discard many', "SELECT outbox_discard('busy', ARRAY(SELECT generate_series(1, :n)))", 'linear' ],
		[ 'redrive all', "SELECT outbox_redrive('busy')", 'linear' ],
		[ 'unsubscribe', "SELECT outbox_unsubscribe('busy')", 'linear' ],
	]);

growth('events that wait for a retry',
	base => $subscribe,
	rows => deferred(1, $waiting, $added) . deferred(2, $waiting, $one),
	calls => [
		[ 'retry one', "SELECT outbox_retry('busy', '{7}')", 'constant' ],
		[ 'retry those of another subscription', "SELECT outbox_retry('quiet')", 'constant' ],
		[ 'discard', "SELECT outbox_discard('busy')", 'constant' ],
		[ 'redrive', "SELECT outbox_redrive('busy')", 'constant' ],
		[ 'cancel', 'SELECT outbox_cancel(7)', 'constant' ],
		[ 'retry all', "SELECT outbox_retry('busy')", 'linear' ],
		[ 'retry many', "SELECT outbox_retry('busy', ARRAY(SELECT generate_series(1, :n)))", 'linear' ],
	]);

growth('events that wait for their time',
	base => $subscribe,
	rows => deferred(1, "'waiting', false, now() + interval '1 h', NULL, 'k' || i", $added),
	calls => [
		[ 'retry', "SELECT outbox_retry('busy')", 'constant' ],
		[ 'cancel', 'SELECT outbox_cancel(7)', 'constant' ],
	]);

# All of them become due at the same moment.
growth('events that are due',
	base => $subscribe,
	rows => deferred(3, "'waiting', false, date_trunc('day', now()), NULL, 'k' || i", $added)
	  . "UPDATE idempotency_internal.outbox_partition SET position = 100000;",
	calls => [ [ 'fetch', "SELECT count(*) FROM outbox_fetch('read', 10)", 'constant' ] ]);

growth('parked events of a key',
	base => $subscribe,
	rows => deferred(3, "CASE WHEN i = 1 THEN 'waiting' ELSE 'parked' END, true,"
		  . " CASE WHEN i = 1 THEN now() END, now(), 'k'", $added)
	  . "UPDATE idempotency_internal.outbox_partition SET position = 100000;",
	calls => [ [ 'fetch', "SELECT count(*) FROM outbox_fetch('read', 10)", 'constant' ] ]);

growth('cancelled events',
	base => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(1, 3) i",
	rows => deferred(1, "'waiting', false, now() + interval '1 h', NULL, 'k'", $added)
	  . "INSERT INTO idempotency_internal.outbox_cancelled (position, cancelled_at)"
	  . " SELECT i, now() - interval '1 min' FROM generate_series(:from, :to) i",
	worker => 1,
	calls => [
		[ 'a small step of the sweeper', 'SELECT idempotency_internal.outbox_sweep_cancelled(10)', 'constant' ],
		[ 'a step of the sweeper', 'SELECT idempotency_internal.outbox_sweep_cancelled(100)', 'constant' ] ]);

done_testing();
