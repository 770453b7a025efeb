# The counters of stock in shared memory are a cache: whatever happens to them,
# to the server, the extension or its tables, they equal the log when they are
# used.  If this fails, stock that does not exist is sold, or existing stock is
# not, after a restart, a restored dump, or with too many items.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;
use Time::HiRes qw(usleep);

use constant DEADLINE_S => 60;

my $node = start_server('stock_restart', allows_streaming => 'logical', conf => <<'EOF');
max_connections = 40
max_prepared_transactions = 10
lock_timeout = 60s
max_wal_senders = 10
max_replication_slots = 10
wal_retrieve_retry_interval = 50ms
idempotency.sweep_interval = 20ms
idempotency.stock_compact_after = 1000000
EOF

sub counters
{
	my ($db) = @_;
	return sql('SELECT string_agg(sku || $$ $$ || available, $$, $$ ORDER BY sku) FROM stock_counters()', $db);
}

# Exactly this quantity can be reserved.
sub is_available
{
	my ($sku, $quantity, $what, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @outcomes = map { "(stock_reserve('$sku', $_, 'try of $_')).outcome" }
	  $quantity > 0 ? ($quantity + 1, $quantity) : 1;

	return is(sql('BEGIN; SELECT ' . join(', ', @outcomes) . '; ROLLBACK', $db),
		$quantity > 0 ? 'insufficient|reserved' : 'insufficient', $what);
}

sub is_verified
{
	my ($what, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sql('SELECT sku, detail FROM stock_verify() WHERE NOT ok', $db), '', "$what: the ledger is right");
}

sub pid_of
{
	my ($session) = @_;
	return $session->query_safe('SELECT pg_backend_pid()');
}

# A session in a transaction that has taken, added and moved hats.
sub shopper
{
	my ($name) = @_;
	my $session = session($node);

	$session->query_safe("BEGIN; SELECT stock_reserve('hat', 3, '$name')");
	$session->query_safe("SAVEPOINT a; SELECT stock_reserve('hat', 2, '$name-2')");
	$session->query_safe("SELECT stock_receive('hat', 50), stock_reserve('hat', 10, '$name-3')");
	return $session;
}

sub wait_for_end_of
{
	my ($pid, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid", $what);
}

# The smallest possible room for counters.
my $room = sql("SELECT min_val FROM pg_settings WHERE name = 'idempotency.stock_items'");
$node->append_conf('postgresql.conf', "idempotency.stock_items = $room");
$node->restart;

# --- restarts

sql(q(
	SELECT stock_receive('hat', 10), stock_receive('scarf', 5);
	SELECT stock_reserve('hat', 4, 'kept', ttl => '1 h')));
is(counters(), 'hat 6, scarf 5', 'counters are loaded by their first use');
for my $how (qw(fast immediate))
{
	$node->stop($how);
	$node->start;
	is(counters(), '', "a start after a stop, $how: there are none");
	is_available('hat', 6, "a stop, $how: what was available is");
	is(counters(), 'hat 6', "a stop, $how: only what is used is loaded");
	is_verified("a stop, $how");
}

# --- sessions that end with units in their transactions

my $session = shopper('terminated');
is_available('hat', 1, 'what an open transaction holds counts as taken, what it adds is not there');
my $pid = pid_of($session);
sql("SELECT pg_terminate_backend($pid)");
wait_for_end_of($pid, 'a session is terminated with stock in its hands');
eval { $session->quit };
is_available('hat', 6, 'it is all given back');
is_verified('a session that was terminated');

$session = shopper('rolled-back');
$session->query_safe('ROLLBACK TO a');
is_available('hat', 3, 'what a savepoint has taken is given back when it is rolled back');
$session->query_safe('ROLLBACK');
is_available('hat', 6, 'and the rest with its transaction');
is_verified('a transaction that is rolled back');
$session->quit;

$session = shopper('killed');
kill('KILL', pid_of($session));
$node->poll_query_until('postgres', 'SELECT true');
eval { $session->quit };
is_available('hat', 6, 'kill -9 of a session with stock in its hands: it is all given back');
is_verified('kill -9 of a session');

# --- a session is terminated while it loads a counter and others wait for it

sub begin_reserving
{
	my ($session, $name) = @_;
	$session->query_until(qr/begun/, "\\echo begun\nSELECT outcome FROM stock_reserve('long', 1, '$name', ttl => '1 h');\n");
	return;
}

sub wait_for_state
{
	my ($watcher, $pid, $state) = @_;
	my $deadline = time + DEADLINE_S;
	my $query = "SELECT coalesce(wait_event_type, state) FROM pg_stat_activity WHERE pid = $pid AND ($state)";
	my $found;

	until ($found = $watcher->query_safe($query))
	{
		die "a session does not get to $state" if time > $deadline;
		usleep(1000);
	}
	return $found;
}

# Stops a session in the middle of its load.  Returns the sessions that wait
# for it; none if the load has ended.
sub stop_load
{
	my ($watcher, $loader, $name) = @_;
	my $pid = pid_of($loader);
	my $waiter = session($node);
	my $waiting = pid_of($waiter);

	sql('UPDATE stock_item SET received = received');
	begin_reserving($loader, "loader $name");
	wait_for_state($watcher, $pid, "query LIKE '%loader%'");
	kill('STOP', $pid);
	begin_reserving($waiter, "waiter $name");
	return $waiter
	  if wait_for_state($watcher, $waiting, "query LIKE '%waiter%' AND (state = 'idle' OR wait_event_type IS NOT NULL)") eq 'Extension';
	kill('CONT', $pid);
	$_->query_safe('SELECT 1') for $loader, $waiter;
	$waiter->quit;
	return;
}

sql("SELECT stock_receive('long', 1)");
sql("INSERT INTO stock_log (sku, change, quantity) SELECT 'long', 'receive', 1 FROM generate_series(2, 300000)");
my $watcher = session($node);
my $loader = session($node);
my $waiter;
for my $try (1 .. 50)
{
	last if $waiter = stop_load($watcher, $loader, $try);
}
ok($waiter, 'a session waits while another loads');
$pid = $watcher->query_safe("SELECT pid FROM pg_stat_activity WHERE query LIKE '%loader%' AND pid <> pg_backend_pid()");
kill($_, $pid) for qw(TERM CONT);		# a new session may need its lock
wait_for_end_of($pid, 'the load is terminated');
eval { $loader->quit };
like($waiter->query_safe('SELECT 1'), qr/reserved/, 'who has waited takes it over');
is_available('long', sql("SELECT available FROM stock_level('long')"), 'and loads what there is');
is_verified('a load that was terminated');
$_->quit for $watcher, $waiter;

# --- PREPARE TRANSACTION, which prepared.pl has more of

for my $call ("stock_reserve('hat', 1, 'p')", "stock_receive('hat', 1)", "stock_adjust('hat', -1, 'p')", "stock_confirm('kept')",
	"stock_cancel('kept')", "stock_extend('kept', '1 h')", "stock_level('hat')")
{
	sql("BEGIN; SELECT $call; PREPARE TRANSACTION 'p'");
	sql("ROLLBACK PREPARED 'p'");
	is_available('hat', 6, "$call in a transaction that is prepared and rolled back");
}
is_verified('PREPARE TRANSACTION');

# --- two databases, whose tables have the same OIDs

sql('CREATE DATABASE other');
sql("CREATE EXTENSION idempotency; SELECT stock_receive('hat', 94)", 'other');
sql('CREATE DATABASE twin TEMPLATE other');
sql("SELECT stock_receive('hat', 5)", 'twin');
my $mine = session($node, 'other');
my $theirs = session($node, 'twin');
$_->query_safe("BEGIN; SELECT stock_reserve('hat', 90, 'both')") for $mine, $theirs;
is_available('hat', 4, 'the same sku in two databases: taken in one', 'other');
is_available('hat', 9, 'and in the other', 'twin');
$mine->query_safe('ROLLBACK');
$theirs->query_safe('COMMIT');
$_->quit for $mine, $theirs;
is_available('hat', 94, 'given back in one', 'other');
is_available('hat', 9, 'kept in the other', 'twin');
is_available('hat', 6, 'and a third has its own');
is_verified('two databases, one', 'other');
is_verified('two databases, the other', 'twin');

# --- the extension is dropped and created

is(counters('other'), 'hat 94', 'a counter that is loaded');
sql('DROP EXTENSION idempotency CASCADE; CREATE EXTENSION idempotency', 'other');
is(counters('other'), '', 'DROP EXTENSION and CREATE EXTENSION: it is gone');
is(sql("SELECT outcome FROM stock_reserve('hat', 1, 'r')", 'other'), 'unknown_sku', 'and the item is not known');
sql("SELECT stock_receive('hat', 7)", 'other');
is_available('hat', 7, 'nor what there was of it', 'other');
is_verified('DROP EXTENSION and CREATE EXTENSION', 'other');

# --- more items than there is room for

my @many = map { "item-$_" } 1 .. 4 * $room;
sql(join('', map { "SELECT stock_receive('$_', 10);\n" } @many));
sql(join('', map { "SELECT stock_reserve('$_', 3, 'of $_', ttl => '1 h');\n" } @many));
is(sql("SELECT count(*), min(available), max(available) FROM stock_levels WHERE sku LIKE 'item-%'"),
	join('|', scalar(@many), 7, 7), 'more items than there is room for work one after another');
cmp_ok(sql('SELECT count(*) FROM stock_counters()'), '<=', $room, 'their counters come and go');
is_verified('more items than there is room for');
is_available($_, 7, "$_ is loaded anew") for @many[ 0, 17, -1 ];

$session = session($node);
$session->query_safe("BEGIN; SELECT stock_reserve('hat', 1, 'holds on')");
my $lines = "'{" . join(', ', map { "\"$_\": 1" } @many) . "}'";
is(error_code($node, 'postgres', "SELECT stock_reserve_many($lines, 'too many')"), '53400',
	'an order of more items than there is room for is refused');
is(error_code($node, 'postgres', 'BEGIN;' . join('', map { "SELECT stock_reserve('$_', 1, 'all of $_');" } @many)), '53400',
	'so is a transaction that changes more, one after another');
is(sql("SELECT count(*) FROM stock_hold WHERE reservation = 'too many' OR reservation LIKE 'all of %'"), '0', 'nothing of it is kept');
is(sql("SELECT count(*), min(available), max(available) FROM stock_levels WHERE sku LIKE 'item-%'"),
	join('|', scalar(@many), 7, 7), 'and nothing is lost');
is_verified('a transaction that is refused');

# A session that is refused can go on after a rollback to a savepoint.
my $greedy = session($node);
$greedy->query_safe("BEGIN; SELECT stock_reserve('item-1', 1, 'modest', ttl => '1 h'); SAVEPOINT a");
$greedy->query("SELECT stock_reserve_many($lines, 'too many')");
like($greedy->{stderr}, qr/too many items of stock are in use/, 'the error says so');
$greedy->{stderr} = '';
$greedy->query_safe("ROLLBACK TO a; SELECT stock_reserve('item-2', 1, 'modest-2', ttl => '1 h')");
is_available($many[-4], 7, 'others are not in its way, nor it in theirs');
$greedy->query_safe('COMMIT');
$greedy->quit;
is_available('item-1', 6, 'a transaction goes on after the savepoint that was too much');

# While all places are pinned other items are refused; afterwards they are not.
my $full = session($node);
$full->query_safe('BEGIN');
for my $item (@many)
{
	$full->query_safe('SAVEPOINT a');
	$full->query("SELECT stock_reserve('$item', 1, 'full $item')");
	last if $full->{stderr};
}
like($full->{stderr}, qr/too many items/, 'a transaction has taken all the room');
$full->{stderr} = '';
$full->query_safe('ROLLBACK TO a');
is(error_code($node, 'postgres', "SELECT stock_receive('$many[-1]', 1); SELECT stock_receive('$many[-2]', 1)"), '53400', 'others are refused then');
is($session->query_safe("SELECT outcome FROM stock_reserve('hat', 1, 'holds on too')"), 'reserved',
	'but not one with an item that it has');
$full->query_safe('ROLLBACK');
$full->quit;
$session->query_safe('COMMIT');
$session->quit;
sql("SELECT stock_receive('$many[-1]', 1)");
is_available('hat', 4, 'those who go on lose nothing');
is_verified('all the room was taken');

# --- restored from a dump, into a database with counters

my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
sql('CREATE DATABASE source');
sql("CREATE EXTENSION idempotency; SELECT stock_receive('hat', 20), stock_receive('cap', 3); SELECT stock_reserve('hat', 5, 'dumped', ttl => '1 h')", 'source');
command_ok([ 'pg_dump', '--data-only', '-t', 'stock_*', '-f', $dump, $node->connstr('source') ], 'a dump of the tables of stock');
sql('CREATE DATABASE target');
sql('CREATE EXTENSION idempotency', 'target');
$session = session($node, 'target');
is($session->query_safe("SELECT outcome FROM stock_reserve('hat', 1, 'early')"), 'unknown_sku', 'an item that is not there yet');
my $idle = session($node, 'target');
$idle->query_safe('SELECT 1');
sql("BEGIN; SELECT stock_receive('hat', 40); ROLLBACK; SELECT stock_receive('sock', 1)", 'target');
command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, $node->connstr('target') ], 'is restored');
is_available('hat', 15, 'the restored items can be reserved', 'target');
is($session->query_safe("SELECT outcome FROM stock_reserve('hat', 5, 'after', ttl => '1 h')"), 'reserved', 'also by who asked before');
is($idle->query_safe("SELECT outcome FROM stock_reserve('hat', 11, 'after that')"), 'insufficient', 'and by who has not asked yet');
is_available('sock', 1, 'what was there is there', 'target');
is_verified('a restored dump', 'target');
$_->quit for $session, $idle;

# --- logical replication

sql('CREATE DATABASE publisher');
sql('CREATE DATABASE subscriber');
sql('CREATE EXTENSION idempotency', $_) for qw(publisher subscriber);
sql("SELECT stock_receive('hat', 20); SELECT stock_reserve('hat', 5, 'replicated', ttl => '1 h')", 'publisher');
sql('CREATE PUBLICATION stock FOR TABLE stock_item, stock_log, stock_hold', 'publisher');
sql("SELECT pg_create_logical_replication_slot('stock', 'pgoutput')", 'publisher');
is(sql("SELECT outcome FROM stock_reserve('hat', 1, 'early')", 'subscriber'), 'unknown_sku',
	'an item that is not replicated yet');

# Sequences are not replicated.
sql("SELECT setval('stock_log_id_seq', 1000000)", 'subscriber');
my $publisher = $node->connstr('publisher') =~ s/'/''/gr;
sql("CREATE SUBSCRIPTION stock CONNECTION '$publisher' PUBLICATION stock WITH (create_slot = false)", 'subscriber');
$node->wait_for_subscription_sync($node, 'stock', 'subscriber');
is_available('hat', 15, 'a subscriber has what was copied', 'subscriber');
sql("SELECT stock_reserve('hat', 3, 'later', ttl => '1 h')", 'publisher');
$node->wait_for_catchup('stock');
is_available('hat', 12, 'its counters follow what is taken', 'subscriber');
$session = session($node, 'subscriber');
$session->query_safe("BEGIN; SELECT stock_reserve('hat', 2, 'own', ttl => '1 h')");
sql("SELECT stock_cancel('later'); SELECT stock_receive('hat', 100)", 'publisher');
wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND mode = 'ShareRowExclusiveLock'",
	'changes wait for those who have stock in their hands');
$session->query_safe('COMMIT');
$node->wait_for_catchup('stock');
is_available('hat', 113, 'and are seen then', 'subscriber');
is_verified('logical replication', 'subscriber');
$session->quit;
sql('DROP SUBSCRIPTION stock', 'subscriber');

# --- a standby

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('stock_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
is($standby->safe_psql('postgres', 'SELECT count(*) FROM stock_counters()'), '0', 'a standby has no counters');
is($standby->safe_psql('postgres', "SELECT available FROM stock_level('hat')"), '4', 'and knows the levels');
sql("SELECT stock_reserve('hat', 1, 'before', ttl => '1 h')");
$session = shopper('open');
$node->wait_for_catchup($standby);
kill('KILL', pid_of($session));
$node->stop('immediate');
eval { $session->quit };
$standby->promote;
my $primary = $node;
use_server($node = $standby);
is(counters(), '', 'after its promotion it begins without');
is_available('hat', 3, 'with what was committed');
is_verified('a promotion');
$node->stop;
use_server($node = $primary);
$node->start;
is_available('hat', 3, 'the old primary, started again, has it as well');

done_testing();
