# outbox_erase and idem_erase remove what a key's events and answers contain,
# from every table, also if a relay is failing to deliver the events at that
# moment.  Positions, order, keys and the state of deliveries stay.  If this
# fails, personal data that somebody has asked to erase are kept or sent, or
# deliveries are lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('erase', conf => "idempotency.sweep_interval = '1h'");

# All rows of our tables that contain the text, but those of the audit.
sub rows_with
{
	my ($text) = @_;
	return sql(<<"END");
SELECT coalesce(string_agg(c.relname || ' ' || n, ', ' ORDER BY c.relname), 'none')
FROM pg_class c, LATERAL (SELECT (xpath('/row/n/text()', query_to_xml(format(
	'SELECT count(*) AS n FROM idempotency_internal.%I t WHERE t::text LIKE %L', c.relname, '%$text%'),
	false, true, '')))[1]::text AS n) counted
WHERE c.relnamespace = 'idempotency_internal'::regnamespace AND c.relkind = 'r' AND n <> '0'
END
}

sub enqueue
{
	my ($topic, $key, $n) = @_;
	return sql(qq(SELECT outbox_enqueue('$topic', '{"n": $n, "name": "Personal"}', key => '$key',
		headers => '{"X-Name": "Personal"}')));
}

# --- delivered, waiting, parked, dead and unread

subscribe($node, $receiver, '/switch/done', topics => "'{order.*}'", keep_deliveries => "'1 day'");
subscribe($node, $receiver, '/switch/late', topics => "'{order.*}'", retry_schedule => "'{0 s,1 h}'", keep_deliveries => "'1 day'");
subscribe($node, $receiver, '/switch/dead', topics => "'{order.*}'", retry_schedule => "'{0 s}'");
sql(q(SELECT outbox_subscribe('read', NULL, topics => '{order.*}');
	SELECT outbox_subscribe('audit', NULL, topics => '{outbox.erased}')));
$receiver->switch($_, 'fail') for qw(late dead);
enqueue('order.paid', 'ann', $_) for 1 .. 3;
enqueue('order.paid', 'bob', 4);
enqueue('other', 'ann', 5);
wait_until($node, q(SELECT (SELECT count(*) FROM outbox_deliveries WHERE subscription = 'late' AND state <> 'delivered') = 4
	AND (SELECT count(*) FROM outbox_dead) = 4), 'events are delivered, wait, are parked and dead');
sql(q(UPDATE idempotency_internal.outbox_attempt SET answer = 'Personal';
	UPDATE idempotency_internal.outbox_history_0 SET answer = 'Personal'));
my $state = q(SELECT string_agg(d::text, ' ' ORDER BY d.subscription, d.position) FROM
	(SELECT subscription, position, state, blocks_key, attempts, due_at, last_at, key, topic, type, created_at FROM outbox_delivery) d);
my $log = q(SELECT string_agg(concat(position, ' ', xid, ' ', created_at, topic, key), ',' ORDER BY position) FROM outbox_log
	WHERE topic <> 'outbox.erased');
my ($before, $log_before) = (sql($state), sql($log));
sql(q(CREATE TABLE lease AS SELECT DISTINCT token FROM outbox_fetch('read')));

is(sql(q(SELECT outbox_erase('ann', '{order.*}', max_events => 2))), '3', 'a call is limited, but for deferred deliveries');
is(sql(q(SELECT outbox_erase('ann', '{order.*}'))), '1', 'the next one erases the rest');
is(sql(q(SELECT outbox_erase('ann', '{order.*}'))), '0', 'and the last one finds nothing');
is(sql(q(SELECT outbox_erase('ann', '{outbox.erased}'))), '0', 'what tells of it is not erased');
is(sql($state), $before, 'deliveries are in the same state');
is(sql($log), $log_before, 'and the log has the same events');
is(sql(q(SELECT string_agg(payload || coalesce(headers::text, ''), ' ' ORDER BY position) FROM outbox_log WHERE topic = 'order.paid' AND key = 'ann')),
	'null null null', 'without payloads and headers');
is(rows_with('"n": [123],'), 'none', 'no other table has these payloads');
is(sql(q(SELECT count(*) FROM outbox_history WHERE key = 'ann' AND answer IS NOT NULL)), '0', 'or what endpoints have answered');
is(sql(q(SELECT (SELECT count(*) FROM outbox_log WHERE payload ->> 'name' = 'Personal') || ' '
	|| (SELECT count(*) FROM outbox_delivery WHERE payload ->> 'name' = 'Personal'))), '2 2', 'other events are as they were');
is(sql(q(SELECT outbox_ack('read', token, ARRAY[2]::bigint[]) FROM lease)), 't', 'a reader acknowledges what was erased meanwhile');
is(sql(q(SELECT string_agg(concat(key, ' ', payload ->> 'key', ' ', payload ->> 'events', ' ', payload ->> 'by' = session_user), ',')
	FROM outbox_fetch('audit'))), 'ann ann 3 t,ann ann 1 t', 'and there is an event about it');

# --- they are still delivered, in order

$receiver->switch($_, 'ok') for qw(late dead);
sql(q(SELECT outbox_retry('late'), outbox_redrive('dead')));
for my $name (qw(late dead))
{
	wait_until($node, "SELECT waiting + parked + dead = 0 FROM outbox_subscriptions WHERE name = '$name'", "all deliveries of $name succeed");
	is(join(' ', grep { $_ eq '-' } split(/ /, $receiver->numbers($name))), '- - -', "$name gets them without payloads");
}

# --- a relay that has events in memory

subscribe($node, $receiver, '/hold/full', topics => "'{full}'", max_in_flight => 1);
enqueue('full', "full-$_", $_) for 1 .. 3;
$receiver->wait_for('full', requests => 1);
wait_for_pass($node);
is(sql(q(SELECT outbox_erase('full-1'), outbox_erase('full-2'))), '1|1', 'events are erased that a relay has read');
$receiver->release('full');
wait_until($node, q(SELECT delivered = 3 FROM outbox_subscriptions WHERE name = 'full'), 'it delivers all of them');
is($receiver->numbers('full'), '1 - 3', 'the second one without its payload');

# --- several keys at once

enqueue('many', "many-$_", $_) for 1, 1, 2, 3;
is(sql(q(SELECT outbox_erase('{many-1,many-2,many-2,unknown}'::text[], '{many}'))), '3', 'of several keys');
is(sql(q(SELECT outbox_erase('{many-1,many-2}'::text[], '{many}'))), '0', 'nothing is left');
is(sql(q(SELECT count(*) FROM outbox_log WHERE topic = 'many' AND payload <> 'null')), '1', 'other keys have their payloads');
is(sql(q(SELECT string_agg(concat_ws(' ', key, payload ->> 'key', payload ->> 'events'), ',' ORDER BY position) FROM outbox_log
	WHERE topic = 'outbox.erased' AND key LIKE 'many%')), 'many-1 many-1 2,many-2 many-2 1', 'and there is an event about each');
is(sql(q(SELECT string_agg(concat_ws(' ', object, details ->> 'events'), ',' ORDER BY at) FROM idempotency_audit WHERE object LIKE 'many%' OR object = 'unknown')),
	'many-1 2,many-2 1,unknown 0,many-1 0,many-2 0', 'and a record');

# --- a relay that fails to deliver at this moment

subscribe($node, $receiver, '/hold/slow', topics => "'{slow}'", retry_schedule => "'{0 s,1 h}'", timeout => "'2 s'");
my $position = enqueue('slow', 'eve', 6);
$receiver->wait_for('slow', requests => 1);
is(sql(q(SELECT outbox_erase('eve'))), '1', 'an event is erased while a request with it is on its way');
wait_until($node, q(SELECT count(*) = 1 FROM outbox_deliveries WHERE subscription = 'slow' AND last_error IS NOT NULL), 'the request fails');
is(sql("SELECT payload::text FROM outbox_delivery WHERE position = $position"), 'null', 'what waits then has no payload');

# --- answers

sql(q(SELECT idem_complete('paid', token, '"Personal"', ttl => '1 day') FROM idem_claim('paid')));
sql('SELECT idem_switch()');
is(sql(q(SELECT idem_erase('paid'), idem_erase('paid'), idem_erase('unknown'))), 't|f|f', 'an answer is erased');
is(sql(q(SELECT outcome, response IS NULL FROM idem_claim('paid'))), 'completed|t', 'and its key still completed');

is(rows_with('Personal"$'), 'none', 'no table has it');
is(error_code($node, 'postgres', "SELECT $_->[0]"), $_->[1], "refused: $_->[0]")
  for [ 'outbox_erase(NULL)', '22004' ], [ q(outbox_erase('k', NULL)), '22004' ], [ q(outbox_erase('k', '{}')), '22023' ],
  [ q(outbox_erase('k', '{order.*,NULL}')), '22023' ], [ q(outbox_erase('k', max_events => 0)), '22023' ],
  [ 'idem_erase(NULL)', '22004' ], [ 'outbox_erase(NULL::text[])', '22004' ], [ q(outbox_erase('{}'::text[])), '22023' ],
  [ q(outbox_erase('{a,NULL}'::text[])), '22004' ], [ q(outbox_erase('{{a},{b}}'::text[])), '22023' ],
  [ q(outbox_erase(array_fill('k'::text, '{1001}'))), '22023' ];

done_testing();
