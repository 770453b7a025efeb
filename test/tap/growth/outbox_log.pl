# The log: what is asked of an event, or done to a subscription, does not depend
# on how many events or subscriptions there are.  If this fails, functions that
# applications call become slower from day to day.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use Test::More;

my $subscribe = <<'SQL';
	SELECT outbox_subscribe(name, 'http://127.0.0.1:9/') FROM unnest('{one, other}'::text[]) name;
	SELECT outbox_subscribe('read', NULL, start => 'earliest', topics => '{t}');
SQL
my @calls = (
	[ 'enqueue', "SELECT outbox_enqueue('t', '{}', key => 'k', dedup_key => 'd')", 'constant' ],
	[ 'cancel one of its own', "SELECT outbox_cancel(outbox_enqueue('t', '{}'))", 'constant' ],
	[ 'event_id', 'SELECT outbox_event_id(7)', 'constant' ],
	[ 'fetch and ack', "SELECT outbox_ack('read', max(token)) FROM outbox_fetch('read', 10) HAVING count(*) > 0", 'constant' ],
	[ 'fetch and fail', "SELECT outbox_ack('read', max(token), array_agg(position)) FROM outbox_fetch('read', 10) HAVING count(*) > 0", 'constant' ],
	[ 'replay', "SELECT outbox_replay('read', 7)", 'constant' ],
	[ 'subscribe', "SELECT outbox_subscribe('new', 'http://127.0.0.1:9/', start => 'earliest')", 'constant' ],
	[ 'alter', "SELECT outbox_alter('one', timeout => '1 s')", 'constant' ],
	[ 'pause', "SELECT outbox_pause('one')", 'constant' ],
	[ 'resume', "SELECT outbox_resume('one')", 'constant' ],
	[ 'ping', "SELECT outbox_ping('one')", 'constant' ],
	[ 'rotate_secret', "SELECT outbox_rotate_secret('one')", 'constant' ],
	[ 'rotate_key', "SELECT outbox_rotate_key('one')", 'constant' ],
	[ 'public_key', "SELECT outbox_public_key('one')", 'constant' ],
	[ 'acknowledge_lost', "SELECT outbox_acknowledge_lost('one')", 'constant' ],
	[ 'unsubscribe', "SELECT outbox_unsubscribe('one')", 'constant' ],
	[ 'topic', "SELECT outbox_topic('t', description => 'd'), outbox_drop_topic('t')", 'constant' ]);

growth('events',
	base => $subscribe,
	rows => "SELECT count(outbox_enqueue('t', '{}', deliver_at => CASE WHEN i > 400 THEN now() + interval '1 h' END))"
	  . ' FROM generate_series(:from, :to) i',
	calls => [
		@calls,
		[ 'cancel', 'SELECT outbox_cancel(477)', 'constant' ],
		[ 'one of outbox_log', 'SELECT * FROM outbox_log WHERE position = 7', 'constant' ],
		[ 'erase', "SELECT outbox_erase('k')", 'linear' ],
		[ 'erase many keys', "SELECT outbox_erase(ARRAY(SELECT 'k' || i FROM generate_series(1, 100) i))", 'linear' ],
		[ 'replay since a time', "SELECT outbox_replay('read', since => now() - interval '1 min')", 'linear' ],
		[ 'the last ones of outbox_log', 'SELECT * FROM outbox_log ORDER BY position DESC LIMIT 10', 'constant' ],
	]);

growth('subscriptions',
	base => $subscribe,
	rows => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(:from, :to) i",
	n => 200,
	calls => [@calls]);

growth('events and cancelled ones',
	base => $subscribe,
	rows => "SELECT count(outbox_cancel(outbox_enqueue('t', '{}', deliver_at => now() + interval '1 h'))) FROM generate_series(:from, :to);"
	  . " UPDATE idempotency_internal.outbox_cancelled SET swept = true",
	worker => 1,
	calls => [ [ 'a step of the sweeper', 'SELECT idempotency_internal.outbox_expire(100)', 'constant' ] ]);

done_testing();
