# Prepared transactions that have enqueued events or changed stock, when nobody
# ends them for long, or somebody does after a restart or a promotion, or where
# no hook runs.  If this fails, their events are skipped or hold up others,
# a quantity is promised twice or is lost, or a session waits for ever.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { PREPARED_MAX => 3, ITEMS_EACH => 100 };

my $receiver = Receiver->start;
my $node = new_server('prepared', allows_streaming => 'logical', conf => <<EOF);
max_prepared_transactions = @{[PREPARED_MAX]}
wal_retrieve_retry_interval = 50ms
idempotency.sweep_interval = 50ms
EOF

# Transaction ids beyond the first 2^32.
command_ok([ 'pg_resetwal', '--epoch=3', $node->data_dir ], 'the transaction ids begin with another epoch');
$node->start;
sql('CREATE EXTENSION idempotency');
sql("SELECT stock_receive('hat', 10), stock_receive('cap', 10)");
subscribe($node, $receiver, '/ok/shop', topics => "'{t}'");

sub prepare
{
	my ($gid, $sql, $db) = @_;
	sql("BEGIN; $sql; PREPARE TRANSACTION '$gid'", $db);
	return;
}

sub event
{
	my ($n) = @_;
	return qq(SELECT outbox_enqueue('t', '{"n": $n}'));
}

sub shelf
{
	my ($db) = @_;
	return sql(q(SELECT string_agg(format('%s %s%s', sku, available, CASE WHEN in_use THEN '*' ELSE '' END), ', ' ORDER BY sku)
		FROM stock_counters()), $db);
}

sub is_verified
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sql('SELECT sku, detail FROM stock_verify() WHERE NOT ok'), '', "$what: the ledger is right");
}

# These events, and no others, were sent in this order.  A stop of the server may
# repeat the last ones.
sub is_sent
{
	my ($what, @numbers) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %seen;
	$receiver->wait_for('shop', events => scalar @numbers);
	wait_for_pass($node);
	return is(join(' ', grep { !$seen{$_}++ } map { $_->{n} } $receiver->requests('shop', 'data.n')), "@numbers", $what);
}

# A session that waits for the end of a prepared transaction.
sub waiting
{
	my ($sql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = session($node);

	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'), "$what waits");
	return $session;
}

# --- others do not wait for its events

prepare('one', event(1) . "; SELECT stock_reserve('hat', 4, 'one')");
sql(event(2));
is_sent('an event behind a prepared one is sent', 2);
my $status = q(SELECT state, detail, hint FROM outbox_status('%s') WHERE "check" = 'prepared transactions');
like(sql(sprintf($status, '1 h')), qr/^ok\|1, the oldest, 'one', for 00:0\d:\d\d\|$/, 'the status has it');
like(sql(sprintf($status, '-1 s')), qr/^warning\|1, .*\|end it: COMMIT PREPARED/, 'with a warning after a while');
sql("COMMIT PREPARED 'one'");
is_sent('and the prepared one at its commit', 2, 1);
prepare('two', event(3));
sql(event(4) . "; ROLLBACK PREPARED 'two'");
is_sent('one that was rolled back is not', 2, 1, 4);

# --- it stays while the server is stopped

for my $how (qw(fast immediate))
{
	my $n = $how eq 'fast' ? 5 : 7;

	prepare('kept', event($n) . "; SELECT stock_reserve('hat', 2, 'kept $how'), stock_receive('cap', 3), stock_receive('new $how', 1)");
	prepare('lost', event(100) . "; SELECT stock_reserve('hat', 1, 'lost'), stock_receive('hat', 50)");
	prepare('waits', "SELECT stock_reserve('hat', 100, 'waits $how', wait => true)");
	$node->stop($how);
	$node->start;
	sql(event($n + 1));
	is(shelf(), '', "a stop, $how: there are no counters");
	is(sql("SELECT outcome FROM stock_reserve('hat', 100, 'x')"), 'insufficient', 'an item is loaded');
	like(shelf(), qr/^hat \d\*$/, 'it is in use by what is prepared');
	is(sql("SELECT waiting FROM stock_counter('hat')"), 1, 'with the reservation that waits');
	sql("ROLLBACK PREPARED 'lost'; ROLLBACK PREPARED 'waits'");
	like(shelf(), qr/^hat \d\*$/, 'it still is');
	is(sql("SELECT waiting FROM stock_counter('hat')"), 0, 'and that does not wait any more');
	$receiver->wait_for('shop', events => $n - 1);
	sql("COMMIT PREPARED 'kept'");
	like(shelf(), qr/^hat \d$/, 'and is not any more');
	is_verified("a stop, $how");
	$receiver->wait_for('shop', events => $n);
}
is_sent('each event that was committed is sent', 2, 1, 4, 6, 5, 8, 7);
is(stock_level('hat'), '2 8', 'each reservation that was committed is there');
is(stock_level('cap'), '16 0', 'and what was received');

prepare('soon', "SELECT stock_reserve('cap', 1, 'soon', '100 ms')");
wait_until($node, "SELECT NOT stock_may_lapse(now() + '1 s')", 'the sweeper searches for lapsed reservations');
sql("COMMIT PREPARED 'soon'");
wait_until($node, "SELECT count(*) = 0 FROM stock_hold WHERE reservation = 'soon'", 'a reservation expires that was prepared');

# Nobody uses the item after the restart.
prepare('lapses', "SELECT stock_reserve('cap', 1, 'lapses', '100 ms')");
$node->restart;
sql("COMMIT PREPARED 'lapses'");
wait_until($node, "SELECT count(*) = 0 FROM stock_hold WHERE reservation = 'lapses'", 'likewise one that was prepared before a restart');

# --- sessions that wait for it

prepare('first', "SELECT stock_reserve('hat', 1, 'same'), stock_cancel('one')");
my $same = waiting(q(SELECT outcome FROM stock_reserve('hat', 1, 'same')), 'who uses the same name');
sql("ROLLBACK PREPARED 'first'");
like($same->query_safe('SELECT 1'), qr/reserved/, 'and gets it at last');
$same->quit;
for my $how (qw(COMMIT ROLLBACK))
{
	prepare('first', "SELECT stock_receive('hat', 5)");
	my $owner = waiting('UPDATE stock_item SET received = received + 1', 'external DML');
	sql("$how PREPARED 'first'");
	$owner->query_safe('SELECT 1');
	$owner->quit;
	is(shelf(), '', 'afterwards there are no counters');
	is_verified("external DML after $how PREPARED");
}
prepare('first', "SELECT stock_receive('hat', 5)");
my $owner = waiting('BEGIN; TRUNCATE stock_log, stock_hold, stock_item, stock_queue; ROLLBACK', 'TRUNCATE');
sql("COMMIT PREPARED 'first'");
$owner->query_safe('SELECT 1');
$owner->quit;
is_verified('TRUNCATE');

# --- more items than there is room for

my $room = PREPARED_MAX * ITEMS_EACH;
my $all = "SELECT stock_receive('item ' || n, 1) FROM generate_series(1, %d) n";
sql(sprintf($all, $room + 1));
is(error_code($node, 'postgres', sprintf("BEGIN; $all; PREPARE TRANSACTION 'full'", $room + 1)), '53400', 'too many items are refused');
is(sql('SELECT count(*) FROM stock_counters() WHERE in_use'), '0', 'and are not in use');
prepare('full', sprintf($all, $room));
is(error_code($node, 'postgres', "BEGIN; SELECT stock_receive('hat', 1); PREPARE TRANSACTION 'more'"), '53400', 'so is one more');
is(sql('SELECT count(*) FROM stock_counters() WHERE in_use'), $room, 'what is prepared is in use');
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 1');
$node->restart;
sql(sprintf($all, ITEMS_EACH));
is(error_code($node, 'postgres', "SELECT stock_receive('item $room', 1)"), '53400', 'likewise after a restart with less room');
is(sql("SELECT stock_receive('hat', 1) > 0"), 't', 'other items can be used');
sql("COMMIT PREPARED 'full'");
is(sql("SELECT stock_receive('item $room', 1)"), '3', 'and this one when the transaction has ended');
is(sql('SELECT count(*) FROM stock_counters() WHERE in_use'), '0', 'none is in use any more');
is_verified('too many items');
$node->append_conf('postgresql.conf', 'max_prepared_transactions = ' . PREPARED_MAX);
$node->restart;

# --- databases

sql('CREATE DATABASE other');
prepare('extension', 'CREATE EXTENSION idempotency', 'other');
sql("COMMIT PREPARED 'extension'", 'other');
wait_for_workers($node, 'other');
pass('workers start when CREATE EXTENSION was prepared');
sql("SELECT stock_receive('hat', 3)", 'other');
prepare('here', "SELECT stock_reserve('hat', 1, 'here')");
prepare('there', "SELECT stock_reserve('hat', 2, 'there')", 'other');
is(sql("SELECT available FROM stock_counter('hat')", 'other'), '1', 'the same item of another database');
sql("ROLLBACK PREPARED 'there'", 'other');
is(sql("SELECT available, in_use FROM stock_counter('hat')", 'other'), '3|f', 'gets its own back');
is(sql("SELECT in_use FROM stock_counter('hat')"), 't', 'and the other is still in use');
sql("COMMIT PREPARED 'here'");
prepare('gone', 'DROP EXTENSION idempotency', 'other');
sql("COMMIT PREPARED 'gone'", 'other');
wait_for_no_workers($node, 'other');
pass('workers end when DROP EXTENSION was prepared');

# --- whatever state the extension is in

prepare('any', 'CREATE TABLE unrelated ()');
prepare('event', event(31));
sql('ALTER TABLE idempotency_internal.idem_fence RENAME TO hidden');
sql("COMMIT PREPARED 'any'");
sql("COMMIT PREPARED 'event'");
sql('ALTER TABLE idempotency_internal.hidden RENAME TO idem_fence');
is_sent('transactions end although a table of the extension is missing', 2, 1, 4, 6, 5, 8, 7, 31);

# CREATE EXTENSION and stock in one transaction that is rolled back, as often as
# there is room for once.
sql('CREATE DATABASE without');
for (1 .. 2)
{
	prepare('undone', 'CREATE EXTENSION idempotency; SELECT count(stock_receive($$x$$ || n, 1)) FROM generate_series(1, ' . PREPARED_MAX * ITEMS_EACH . ') n', 'without');
	sql("ROLLBACK PREPARED 'undone'", 'without');
}
prepare('room', "SELECT stock_reserve('hat', 1, 'room')");
sql("ROLLBACK PREPARED 'room'");
pass('what was rolled back with the extension takes no room');
sql('DROP DATABASE without');

# --- where no hook runs

my $publisher = PostgreSQL::Test::Cluster->new('publisher');
$publisher->init(allows_streaming => 'logical');
$publisher->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
$publisher->start;
$publisher->safe_psql('postgres', 'CREATE TABLE orders (n int PRIMARY KEY); CREATE PUBLICATION orders FOR TABLE orders');
my $connection = $publisher->connstr . ' dbname=postgres';
sql(<<"SQL");
CREATE TABLE orders (n int PRIMARY KEY);
CREATE FUNCTION take_order() RETURNS trigger LANGUAGE plpgsql SET search_path = public, idempotency_internal AS \$\$
BEGIN
	PERFORM outbox_enqueue('t', jsonb_build_object('n', NEW.n)), stock_reserve('cap', 1, 'order ' || NEW.n);
	RETURN NEW;
END
\$\$;
CREATE TRIGGER take_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION take_order();
ALTER TABLE orders ENABLE ALWAYS TRIGGER take_order;
CREATE SUBSCRIPTION orders CONNECTION '$connection' PUBLICATION orders WITH (two_phase = true, copy_data = false);
SQL
$publisher->poll_query_until('postgres', q(SELECT active FROM pg_replication_slots WHERE slot_name = 'orders'));
wait_until($node, q(SELECT subtwophasestate = 'e' FROM pg_subscription), 'a subscription replicates prepared transactions');
my $caps = sql("SELECT available FROM stock_level('cap')");
for my $how (qw(COMMIT ROLLBACK))
{
	my $n = $how eq 'COMMIT' ? 11 : 12;
	$publisher->safe_psql('postgres', "BEGIN; INSERT INTO orders VALUES ($n); PREPARE TRANSACTION 'order'");
	wait_until($node, 'SELECT count(*) = 1 FROM pg_prepared_xacts', "one is prepared by the apply worker");
	is(sql("SELECT in_use FROM stock_counter('cap')"), 't', 'and its item is in use');
	$publisher->safe_psql('postgres', "$how PREPARED 'order'");
	wait_until($node, "SELECT NOT in_use FROM stock_counter('cap')", "the sweeper notices its $how");
}
is(sql("SELECT available FROM stock_level('cap')"), $caps - 1, 'what was committed is reserved');
is_sent('and sent', 2, 1, 4, 6, 5, 8, 7, 31, 11);
is_verified('an apply worker');
sql('DROP SUBSCRIPTION orders');
$publisher->stop;

# --- a promotion

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
prepare('moved', event(21) . "; SELECT stock_reserve('hat', 1, 'moved'), stock_receive('cap', 2)");
sql(event(22));
$node->wait_for_catchup($standby);
is_sent('before the promotion', 2, 1, 4, 6, 5, 8, 7, 31, 11, 22);
my $hats = sql("SELECT available FROM stock_counter('hat')");
$node->stop('immediate');
$standby->promote;
use_server($standby);
is(sql("SELECT outcome FROM stock_reserve('hat', 1000, 'x')"), 'insufficient', 'an item is loaded after a promotion');
is(sql("SELECT available, in_use FROM stock_counter('hat')"), "$hats|t", 'with what is prepared');
sql("COMMIT PREPARED 'moved'");
is(sql("SELECT available, in_use FROM stock_counter('hat')"), "$hats|f", 'which is committed on the new primary');
is_verified('a promotion');
$receiver->wait_for('shop', events => 11);
ok((grep { $_->{data}{n} == 21 } $receiver->requests('shop')), 'and sent from there');

done_testing();
