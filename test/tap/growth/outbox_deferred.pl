# Deferred deliveries: what is read and changed of them costs as much as it
# returns or changes.  If this fails, an outage of one receiver makes an
# operator's functions useless just when they are needed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use Test::More;

my $subscribe = "SELECT outbox_subscribe('s', 'http://127.0.0.1:9/')";
my $dead = <<'SQL';
	INSERT INTO idempotency_internal.outbox_delivery
		(subscription, position, partition, state, blocks_key, attempts,
		 last_at, last_status, last_error, created_at, topic, key, payload)
	SELECT 1, i, 0, 'dead', false, 10, now(), 500, 'HTTP 500', now(), 't', 'k' || i, '{}'
	FROM generate_series(:from, :to) i;
	INSERT INTO idempotency_internal.outbox_attempt
		(subscription, position, attempt, at, duration_ms, status, error)
	SELECT 1, i, 1, now(), 1, 500, 'HTTP 500' FROM generate_series(:from, :to) i
SQL

growth('dead letters',
	base => $subscribe,
	rows => $dead,
	states => [ 'no statistics', 'statistics' ],
	calls => [
		[ 'outbox_discard', "SELECT outbox_discard('s')", 'linear' ],
		[ 'outbox_unsubscribe', "SELECT outbox_unsubscribe('s')", 'linear' ] ]);

done_testing();
