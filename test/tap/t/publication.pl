# A publication of all tables, or of all tables in a schema, breaks nothing:
# every table with updates or deletes has a replica identity, and a subscriber
# gets all changes, including those written without the executor.  If this
# fails, the first successful retry ends the relay, which then sends the event
# again and again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my %publications = (everything => 'FOR ALL TABLES', whole_schema => 'FOR TABLES IN SCHEMA idempotency_internal');

my $receiver = Receiver->start;
my $node = start_server('publication', allows_streaming => 'logical', conf => <<'EOF');
idempotency.sweep_interval = 50ms
idempotency.stock_compact_after = 5
EOF
my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');

$subscriber->init(allows_streaming => 'logical');
$subscriber->start;

# --- a subscriber for each of the two, with plain tables

my $members = q(SELECT c.oid, c.relname, c.relreplident FROM pg_class c
	JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency' WHERE c.relkind = 'r');
my @tables = split(/\n/, sql("SELECT 'idempotency_internal.' || relname FROM ($members) m ORDER BY relname"));
my $definitions = 'CREATE SCHEMA idempotency_internal; ' . sql(qq(
	SELECT format('CREATE TABLE idempotency_internal.%I (%s%s);', relname,
		(SELECT string_agg(format('%I %s', attname,
			CASE t.typtype WHEN 'e' THEN 'text' ELSE format_type(atttypid, atttypmod) END), ', ' ORDER BY attnum)
			FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attrelid = m.oid AND attnum > 0 AND NOT attisdropped),
		(SELECT ', ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = m.oid AND contype = 'p'))
	FROM ($members) m;
	SELECT format('ALTER TABLE idempotency_internal.%I REPLICA IDENTITY FULL;', relname) FROM ($members) m WHERE relreplident = 'f'));

for my $name (sort keys %publications)
{
	sql("CREATE PUBLICATION $name $publications{$name}");
	$subscriber->safe_psql('postgres', "CREATE DATABASE $name");
	$subscriber->safe_psql($name, $definitions);
	$subscriber->safe_psql($name, "CREATE SUBSCRIPTION $name CONNECTION '"
		  . $node->connstr . " dbname=postgres' PUBLICATION $name");
	$subscriber->wait_for_subscription_sync($node, $name, $name);
}
is(sql("SELECT count(*) FROM pg_publication_tables WHERE tablename LIKE 'idem%'"), 2 * grep(/\.idem/, @tables),
	'both publish our tables');

is(sql(qq(SELECT string_agg(relname, ' ' ORDER BY relname) FROM ($members) m
	WHERE relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = m.oid AND indisprimary))),
	'', 'all tables have a replica identity');

# --- use of the outbox

subscribe($node, $receiver, '/switch/shop', retry_schedule => "'{0 s" . ',200 ms' x 50 . "}'");
my $relay = worker_pid($node, 'relay');

$receiver->switch('shop', 'fail');
sql(q(SELECT outbox_enqueue('t', '{"n": 1}', key => 'a'), outbox_enqueue('t', '{"n": 2}', key => 'a')));
wait_until($node, 'SELECT count(*) > 0 FROM outbox_attempts', 'an event fails');
$receiver->switch('shop', 'ok');
wait_until($node, q(SELECT waiting + parked + dead = 0 AND delivered = 2 FROM outbox_subscriptions), 'and is retried with success');
is($receiver->distinct_numbers('shop'), '1 2', 'and so is what was parked behind it');
my $sent = $receiver->requests('shop');
enqueue_numbers($node, 't', 3);
$receiver->wait_for('shop', events => 3);
is(scalar($receiver->requests('shop')), $sent + 1, 'which is sent no more');

$receiver->switch('shop', 'fail');
sql(q(SELECT outbox_alter('shop', retry_schedule => '{0 s,100 ms}')));
enqueue_numbers($node, 't', 4 .. 6);
wait_until($node, q(SELECT dead = 3 FROM outbox_subscriptions), 'events die');
is(sql(q(SELECT outbox_discard('shop', ARRAY(SELECT max(position) FROM outbox_dead)))), '1', 'one is discarded');
$receiver->switch('shop', 'ok');
is(sql(q(SELECT outbox_redrive('shop'))), '2', 'the others are redriven');
$receiver->wait_for('shop', events => 6);
wait_until($node, q(SELECT waiting + parked + dead = 0 FROM outbox_subscriptions), 'with success');
sql(q(SELECT outbox_enqueue('t', '{"n": 7}', deliver_at => clock_timestamp() + interval '100 ms')));
$receiver->wait_for('shop', events => 7);
sql(q(SELECT outbox_rotate_secret('shop', overlap => '0 s'), outbox_alter('shop', max_in_flight => 2),
	outbox_pause('shop'), outbox_resume('shop')));
isnt(sql(q(SELECT outbox_replay('shop', from_position => 1))), '', 'all of them are replayed');
wait_until($node, q(SELECT lag_events = 0 AND waiting = 0 FROM outbox_subscriptions, outbox_wake()), 'again');
subscribe($node, $receiver, '/fail/gone', start => q('earliest'), partitions => 4);
wait_until($node, q(SELECT waiting > 0 FROM outbox_subscriptions WHERE name = 'gone'), 'another one fails');
sql(q(SELECT outbox_unsubscribe('gone'), outbox_adopt(keep_identity => true)));
sql(q(SELECT outbox_switch()));
is(worker_pid($node, 'relay'), $relay, 'the relay has never failed');

# --- use of claims

is(sql(q(
	SELECT outcome FROM idem_claim('transaction', request => 'r');
	SELECT outcome FROM idem_claim('transaction', request => 'r');
	SELECT token AS t FROM idem_claim('lease', lease => '1 min') \gset
	SELECT idem_renew('lease', :t) > now();
	SELECT idem_complete('lease', :t, '{"done": true}');
	SELECT token AS t FROM idem_claim('fails', lease => '1 min') \gset
	SELECT idem_fail('fails', :t, '{}', retry => true);
	SELECT outcome FROM idem_claim('fails', lease => '1 min');
	SELECT outcome FROM idem_claim('short', lease => '1 us');
	SELECT outcome FROM idem_claim('short', lease => '1 us');
	SELECT count(*) FROM idem_claim_many('{m1,m2,transaction}');
	SELECT outcome FROM idem_claim('expires', ttl => '1 us');
	SELECT outcome FROM idem_claim('expires');
	SELECT idem_forget('m2'))), join("\n", qw(claimed completed t), '', '', qw(claimed claimed claimed 3 claimed claimed t)),
	'keys are claimed, completed, renewed, taken over and forgotten');
sql(q(SELECT idem_switch()));
is(sql(q(SELECT outcome FROM idem_claim('short', lease => '1 min'); SELECT idem_migrate() > 0; SELECT idem_forget('lease'))),
	"claimed\nt\nt", 'and move to another segment');

# --- use of stock

is(sql(q(
	SELECT stock_receive('hat', 100), stock_adjust('hat', -1, 'lost'), stock_receive('cap', 10);
	SELECT outcome FROM generate_series(1, 3) i, stock_reserve('hat', 1, 'r' || i, ttl => '1 h');
	SELECT stock_confirm('r1'), stock_cancel('r2');
	SELECT outcome FROM stock_reinstate('r2');
	SELECT outcome FROM stock_reserve_many('{"hat": 2, "cap": 2}', 'order', ttl => '1 h');
	SELECT outcome FROM stock_extend('order', ttl => '2 h');
	SELECT stock_confirm('order', '{cap}');
	SELECT outcome FROM stock_reserve('hat', 1, 'lapses', ttl => '1 ms'))),
	join("\n", '100|99|10', qw(reserved reserved reserved done|done done reserved done done reserved)),
	'stock is reserved, confirmed, cancelled, extended and reinstated');
wait_until($node, q(SELECT count(*) = 0 FROM stock_hold WHERE reservation = 'lapses'), 'reservations expire');
sql(q(SELECT stock_receive('hat', 1) FROM generate_series(1, 20)));
wait_until($node, q(SELECT count(*) > 0 FROM stock_history_0), 'and history is compacted');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'all of it adds up');

# --- the subscribers' tables

sub contents
{
	my ($server, $db) = @_;
	return join("\n", map { "$_ " . $server->safe_psql($db,
				"SELECT count(*) || ' ' || coalesce(md5(string_agg(t::text, ' ' ORDER BY t::text)), '') FROM $_ t") } @tables);
}

# The sweeper goes on, so the two are compared until they are equal.
for my $name (sort keys %publications)
{
	my ($here, $there) = ('', '-');

	for (1 .. 50)
	{
		$node->wait_for_catchup($name);
		$here = contents($node, 'postgres');
		$there = contents($subscriber, $name);
		last if $here eq $there;
	}
	is($there, $here, "publication $name: the subscriber has every row as it is here");
	is($subscriber->safe_psql($name, 'SELECT apply_error_count + sync_error_count FROM pg_stat_subscription_stats'
		  . " WHERE subname = '$name'"), '0', 'without an error');
}
unlike(slurp_file($node->logfile), qr/replica identity|ERROR/, 'and nothing has failed here');

done_testing();
