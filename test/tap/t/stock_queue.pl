# The sweeper serves the queues of items: at once when a transaction ends that
# makes more available, in the order in which the reservations came, and also
# after restarts, errors and a restore.  If this fails, a customer waits beside
# a full shelf.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant { CUSTOMERS => 200, CLIENTS => 4, SECONDS_MAX => 20 };

my $receiver = Receiver->start;

# The sweeper is never the one that looks first: it has to be called.
my $node = start_server('stock_queue', conf => "idempotency.sweep_interval = 1h\n");
subscribe($node, $receiver, '/ok/shop', topics => "'{stock.*}'");
sql("SELECT stock_receive('hat', 1)");
sql("SELECT outcome FROM stock_reserve('hat', 1, 'first')");

sub waits
{
	my ($name, $quantity) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sql("SELECT outcome FROM stock_reserve('hat', $quantity, '$name', wait => true)"), 'waiting', "$name waits");
}

sub is_served
{
	my ($name, $after) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time;
	wait_until($node, "SELECT state = 'open' FROM stock_reservation_status('$name')", "$name is served after $after");
	return cmp_ok(time - $start, '<', SECONDS_MAX, 'soon');
}

# Waits until the sweeper has looked at everything that there is now.
sub swept
{
	for (1 .. 2)
	{
		my $now = sql('SELECT clock_timestamp()');
		$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = 'postgres'"
			  . " AND backend_type = 'idempotency sweeper' AND state = 'idle' AND query_start > '$now'");
	}
	return;
}

# --- what calls the sweeper

waits('a receipt', 1);
sql("SELECT stock_receive('hat', 1)");
is_served('a receipt', 'a receipt');

waits('a cancellation', 1);
sql("SELECT stock_cancel('first')");
is_served('a cancellation', 'a cancellation');

# All there is is in an open transaction.
my $session = session($node);
sql("SELECT stock_receive('hat', 3)");
$session->query_safe("BEGIN; SELECT outcome FROM stock_reserve('hat', 3, 'open')");
waits('a rollback', 1);
$session->query_safe('ROLLBACK');
is_served('a rollback', 'a rollback');

$session->query_safe("BEGIN; SAVEPOINT one; SELECT outcome FROM stock_reserve('hat', 2, 'open')");
waits('a savepoint', 1);
$session->query_safe('ROLLBACK TO one');
is_served('a savepoint', 'the rollback of a savepoint in an open transaction');
$session->query_safe('COMMIT');

sql("SELECT outcome FROM stock_reserve('hat', 1, 'last')");
$session->query_safe("BEGIN; SELECT outcome FROM stock_reserve('hat', 1, 'its own commit', wait => true)");
sql("SELECT stock_cancel('last')");
is(sql("SELECT outcome FROM stock_reserve('hat', 1, 'late')"), 'insufficient', 'one that has not committed is not overtaken');
$session->query_safe('COMMIT');
is_served('its own commit', 'its own commit');

waits('the first', 2);
waits('the second', 1);
sql("SELECT stock_receive('hat', 1)");
is(sql("SELECT outcome FROM stock_reserve('hat', 1, 'late')"), 'insufficient', 'nor is one that needs more than there is');
sql("SELECT stock_cancel('the first')");
is_served('the second', 'the first has left');

is(sql("SELECT stock_receive('cap', 1), outcome FROM stock_reserve('hat', 1, 'it', wait => true, wait_ttl => '2 s')"), '1|waiting', 'a short wait');
alter_system('idempotency.sweep_interval', "'50ms'");
wait_until($node, "SELECT state = 'expired' FROM stock_reservation_status('it')", 'ends by itself');
wait_until($node, 'SELECT count(*) = 0 FROM stock_queue', 'and leaves the queue');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
is(sql('SELECT count(*) FROM stock_waiting'), '0', 'nobody waits');

# --- the receiver is told

$receiver->wait_for('shop', events => 6);
my %told = map { $_->{data}{reservation} => $_->{data} } grep { defined $_->{data}{reservation} } $receiver->requests('shop');
is(join(',', sort keys %told), join(',', sort ('a receipt', 'a cancellation', 'a rollback', 'a savepoint', 'its own commit', 'the second')),
	'every customer who was served');
is("$told{'the second'}{sku} $told{'the second'}{quantity}", 'hat 1', 'with the item and the quantity');

# --- a lock on the first, an error, killed workers, a crash

waits('locked', 1);
waits('after it', 1);
$session->query_safe("BEGIN; SELECT FROM stock_hold WHERE reservation = 'locked' FOR UPDATE");
sql("SELECT stock_receive('hat', 2)");
swept();
is(sql('SELECT count(*) FROM stock_waiting'), '2', 'a lock on the first keeps the queue waiting');
$session->query_safe('COMMIT');
is_served($_, 'the lock') for 'locked', 'after it';

# A row that nobody can use does not block other queues.
waits('wrong row', 1);
sql("SELECT outcome FROM stock_reserve('cap', 2, 'other queue', wait => true)");
sql('ALTER TABLE stock_queue DROP CONSTRAINT stock_queue_ttl_us_check');
my $offset = -s $node->logfile;
sql("UPDATE stock_queue SET ttl_us = 9223372036854775807 WHERE reservation = 'wrong row'");
sql("SELECT stock_receive('hat', 1)");
ok($node->wait_for_log(qr/WARNING:  queue of "hat" could not be served/, $offset), 'a wrong row is reported');
sql("SELECT stock_receive('cap', 1)");
is_served('other queue', 'that');
swept();
my $warnings = () = slurp_file($node->logfile, $offset) =~ /could not be served/g;
is($warnings, '1', 'it is reported once');
sql("UPDATE stock_queue SET ttl_us = 60000000 WHERE reservation = 'wrong row'");
is_served('wrong row', 'the row was corrected');

waits('killed', 2);
sql("SELECT stock_receive('hat', 1)");
sql('SELECT pg_terminate_backend(' . worker_pid($node, 'sweeper', 'postgres') . "); SELECT stock_receive('hat', 1)");
is_served('killed', 'a new sweeper has started');

waits('crash', 2);
sql("SELECT stock_receive('hat', 1)");
$session->quit;
$node->stop('immediate');
$node->start;
is(sql("SELECT outcome FROM stock_reserve('hat', 1, 'late')"), 'insufficient', 'after a crash it is not overtaken');
sql("SELECT stock_receive('hat', 1)");
is_served('crash', 'a crash');

# What is enough already is served after a restart without a call.
waits('restart', 1);
alter_system('idempotency.databases', "'none'");
wait_for_no_workers($node, 'postgres');
sql("SELECT stock_receive('hat', 1)");
$node->restart;
is(sql("SELECT state FROM stock_reservation_status('restart')"), 'waiting', 'without a sweeper, it waits');
is(sql("SELECT state FROM idempotency_status() WHERE \"check\" = 'stock queues'"), 'ok', 'which is not late yet');
alter_system('idempotency.databases', 'DEFAULT');
is_served('restart', 'the sweeper is back');

# --- dump and restore

waits('dumped', 1);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'the queue is dumped');
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), $dump ], 'and restored');
is($node->safe_psql('copy', 'SELECT sku, position, reservation, quantity FROM stock_waiting'), 'hat|1|dumped|1', 'with its order');
$node->safe_psql('copy', "SELECT stock_receive('hat', 1)");
ok($node->poll_query_until('copy', "SELECT state = 'open' FROM stock_reservation_status('dumped')"), 'and served there');
is($node->safe_psql('copy', 'SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'where the ledger is right');
is(sql("SELECT state FROM stock_reservation_status('dumped')"), 'waiting', 'but not here');
sql("SELECT stock_cancel('dumped')");

# --- many customers, whose turn comes in the order in which they came

sql("SELECT stock_receive('rush', 1)");
sql(join(';', map { "SELECT outcome FROM stock_reserve('rush', 2, 'customer $_', wait => true)" } 1 .. CUSTOMERS));
my $script = PostgreSQL::Test::Utils::tempdir() . '/script';
append_to_file($script, <<'EOF');
\set n random(1, 1000000000)
SELECT stock_receive('rush', 2);
SELECT outcome FROM stock_reserve('rush', 1, 'overtaker :n');
EOF
$node->command_ok([ 'pgbench', '-n', '-c', CLIENTS, '-t', CUSTOMERS / CLIENTS - 10, '-f', $script, $node->connstr('postgres') ],
	'pieces come in, and others want them');
wait_until($node, "SELECT count(*) = 40 FROM stock_waiting", 'as many are served as there is for');
is(sql("SELECT count(*) FROM stock_holds WHERE reservation LIKE 'overtaker%'"), '0', 'nobody was overtaken');
is(sql(q(SELECT string_agg(substr(reservation, 10), ',' ORDER BY id) FROM stock_history WHERE change = 'reserve' AND sku = 'rush')),
	join(',', 1 .. CUSTOMERS - 40), 'they were served in the order in which they came');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

done_testing();
