# Views of the outbox, and what reads them, cost as much as they show.  If this
# fails, monitoring slows down the server just when a receiver is broken.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use PostgreSQL::Test::Utils;
use Test::More;

my $subscribe = <<'SQL';
	SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(1, 200) i;
SQL

# Two of the subscriptions have all deferred deliveries.
my $dead = <<'SQL';
	INSERT INTO idempotency_internal.outbox_delivery
		(subscription, position, partition, state, blocks_key, attempts,
		 last_at, last_status, last_error, created_at, topic, key, payload)
	SELECT 1 + i % 2, i, 0, 'dead', false, 10, now(), 500, 'HTTP 500', now(), 't', 'k' || i, '{}'
	FROM generate_series(:from, :to) i;
SQL

growth('dead letters of two of 200 subscriptions',
	base => $subscribe,
	rows => $dead,
	calls => [
		[ 'another subscription', "SELECT * FROM outbox_subscriptions WHERE name = 's100'", 'constant' ],
		[ 'outbox_subscriptions', 'SELECT * FROM outbox_subscriptions', 'linear' ],
		[ 'idempotency_status', 'SELECT * FROM idempotency_status()', 'linear' ],
	]);

# As in docs/operations/outbox.md, docs/queries and the runbook.
my $of_key = 'SELECT position, state, attempts, next_attempt_at, last_error FROM outbox_deliveries'
  . " WHERE subscription = 's1' AND key = 'k77' %s ORDER BY position LIMIT 10";
my $event = slurp_file("$FindBin::RealBin/../../../docs/queries/event.sql") =~ s/^--.*\n//gmr =~ s/:position/77/r =~ s/;\s*\z//r;

growth('subscriptions, of which two have dead letters',
	rows => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(:from, :to) i; $dead",
	n => 200,
	calls => [
		[ 'outbox_subscriptions', 'SELECT * FROM outbox_subscriptions', 'linear' ],
		[ 'idempotency_status', 'SELECT * FROM idempotency_status()', 'linear' ],
	]);


growth('events of one subscription that wait',
	base => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(1, 3) i",
	rows => <<'SQL',
	INSERT INTO idempotency_internal.outbox_delivery
		(subscription, position, partition, state, blocks_key, attempts, due_at,
		 last_at, last_status, last_error, created_at, topic, key, payload)
	SELECT 1, i, 0, 'waiting', true, 3, now() + interval '1 h', now(), 500, 'HTTP 500', now(), 't', 'k' || i, '{}'
	FROM generate_series(:from, :to) i;
SQL
	calls => [
		[ 'what a key waits for', sprintf($of_key, ''), 'constant' ],
		[ 'what a key waits for, without history', sprintf($of_key, "AND state <> 'delivered'"), 'constant' ],
		[ 'where an event is', $event, 'constant' ],
	]);

growth('dead letters of one subscription',
	base => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(0, 2) i",
	rows => $dead,
	calls => [
		[ 'where an event is', $event, 'constant' ],
	]);

growth('subscriptions',
	rows => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(:from, :to) i",
	n => 200,
	calls => [
		[ 'outbox_subscriptions', 'SELECT * FROM outbox_subscriptions', 'linear' ],
		[ 'idempotency_status', 'SELECT * FROM idempotency_status()', 'linear' ],
		[ 'outbox_stats', 'SELECT * FROM outbox_stats', 'linear' ],
		[ 'outbox_latency', 'SELECT * FROM outbox_latency', 'linear' ],
		[ 'where an event is', $event, 'linear' ],
	]);

growth('subscriptions',
	base => "SELECT outbox_subscribe('quiet', 'http://127.0.0.1:9/')",
	rows => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(:from, :to) i",
	n => 200,
	worker => 1,
	calls => [ [ 'a step of the sweeper', 'SELECT idempotency_internal.outbox_expire(1000)', 'constant' ] ]);

done_testing();
