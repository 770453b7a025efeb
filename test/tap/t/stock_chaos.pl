# Dozens of clients compete for few items, wait for them, change their carts, let
# reservations lapse, roll back and forget, while backends, workers and the server are killed; at last the
# server is lost and its standby is promoted.  If this fails, an answer was
# wrong, or a unit was sold twice.  SEED repeats what the clients try, but not
# in which order they get there.
#
# CHAOS_SECONDS: how long; SEED.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Havoc;
use PostgreSQL::Test::Cluster;
use Program;
use Server;
use Test::More;

use constant {
	CLIENTS => 24,
	SKUS => 120,
	ROOM => 32,
	STEPS_BETWEEN => 150,
};

my $seconds = $ENV{CHAOS_SECONDS} // 10;
my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

my $node = new_server('chaos', allows_streaming => 1, conf => <<EOF);
max_connections = @{[CLIENTS + 16]}
log_statement = none
idempotency.sweep_interval = 20ms
idempotency.stock_items = @{[ROOM]}
idempotency.stock_compact_after = 20
idempotency.stock_archive_topic = 'stock.archive'
idempotency.stock_events = on
EOF
$node->start;
sql('CREATE EXTENSION idempotency');
sql("SELECT pg_create_physical_replication_slot('standby', true)");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', <<'EOF');
primary_slot_name = 'standby'
wal_retrieve_retry_interval = 50ms
EOF
$standby->start;

# From now on acknowledged transactions are on the standby as well.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$node->reload;
sql(join('', map { "SELECT stock_receive('sku-$_', " . ($_ < 4 ? 60 : 15) . ", 'opening');\n" } 0 .. SKUS - 1));

my $clients = Program->start([ 'node', "$FindBin::RealBin/../programs/stock_clients.js" ],
	PGHOST => $node->host, PGUSER => scalar(getpwuid($<)), PGDATABASE => 'postgres',
	SEED => $seed, CLIENTS => CLIENTS, SKUS => SKUS);

my $havoc = Havoc->new($node, $clients, $seed);

sub check
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$havoc->stop_clients($what);
	$havoc->check($what);
	return;
}

# --- what is killed

my %killings = (
	client => sub { $havoc->kill_type('client backend') },
	'a client in a transaction' => sub { $havoc->kill_one("state = 'idle in transaction'") },
	sweeper => sub { $havoc->kill_type('idempotency sweeper') },
	relay => sub { $havoc->kill_type('idempotency relay') },
	checkpointer => sub { $havoc->kill_type('checkpointer') },
	walsender => sub { $havoc->kill_type('walsender') },
	'many clients' => sub { $havoc->terminate("backend_type = 'client backend'", int(CLIENTS / 3)) },
	'the whole server' => sub { $havoc->kill_server && $havoc->start_again },
	'the server, immediately' => sub { $havoc->stop_and_start('immediate') },
	'the server, fast' => sub { $havoc->stop_and_start('fast') },
);

$havoc->start_clients;
$havoc->get_on('their start', STEPS_BETWEEN);
$havoc->wreak($seconds, STEPS_BETWEEN, %killings);

# --- the database, after a restart, and on the standby

check('after ' . $havoc->deaths . ' deaths');
wait_until($node, 'SELECT count(*) = 0 FROM stock_hold WHERE expires_at <= now()', 'what has lapsed expires');
wait_until($node, 'SELECT count(*) = 0 FROM stock_waiting JOIN stock_levels USING (sku) WHERE position = 1 AND available >= quantity',
	'the first of each queue gets what there is');
check('once it has expired');
$node->restart;
check('after a restart');
$havoc->start_clients;
$havoc->get_on('the restart', 5 * STEPS_BETWEEN);
cmp_ok(sql('SELECT count(*) FROM stock_counters()'), '<=', ROOM,
	'there are no more counters than there is room for');

# A transaction that needs more counters than there is room for is refused, and
# others are not affected.
my (undef, undef, $refusal) = $node->psql('postgres',
	"SELECT stock_adjust('sku-' || n, 1, 'too many') FROM generate_series(0, @{[ROOM]}) n",
	extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
like($refusal, qr/ERROR:  53400/, 'a transaction that needs all counters and one more');
$havoc->get_on('that', STEPS_BETWEEN);
check('with counters loaded anew');

# The primary is lost under load.  No client may have got an answer that the
# standby does not know.
$havoc->start_clients;
$havoc->get_on('the check', 5 * STEPS_BETWEEN);
$havoc->kill_server;
$standby->promote;
$havoc->start_clients($standby);
$havoc->get_on('the promotion', 5 * STEPS_BETWEEN);
check('after the promotion of the standby');

# --- has enough happened?

my $counts = $havoc->counts;
note(join("\n", map { "$_: $counts->{$_}" } sort keys %$counts));
my %least = (
	acknowledged => 1000, unknown => 5, 'rolled back' => 50, 'died before its end' => 5,
	'rolled back to savepoint' => 20, 'refused ID005' => 10, 'refused ID006' => 1,
	'reserve reserved' => 300, 'reserve insufficient' => 10, 'receive done' => 50, 'adjust done' => 20,
	'confirm done' => 100, 'confirm expired' => 5, 'cancel done' => 50, 'extend done' => 30,
	'reinstate done' => 20, 'reinstate already_reserved' => 10,
	'reserve waiting' => 20, 'confirm waiting' => 1, 'cart reserved' => 10, 'change done' => 5, 'change insufficient' => 1,
);
cmp_ok($counts->{$_} // 0, '>=', $least{$_}, "at least $least{$_}: $_") for sort keys %least;
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

$clients->stop;
done_testing();
