# A shop in trouble: dozens of clients fight for few items, let reservations
# lapse, roll back and forget, while backends, workers and the server are killed,
# and at last the server is lost and its standby takes over.  If this fails, what
# somebody was told is not so, or a piece was sold twice; the seed repeats what
# the clients try, if not in which order they get there.
#
# CHAOS_SECONDS: how long; SEED.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use List::Util qw(shuffle sum0);
use PostgreSQL::Test::Cluster;
use Program;
use Server;
use Test::More;
use Time::HiRes qw(usleep);

use constant {
	CLIENTS => 24,
	SKUS => 120,
	ROOM => 32,
	STEPS_BETWEEN => 150,
	DEADLINE_S => 60,
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
$node->safe_psql('postgres', 'CREATE EXTENSION idempotency');
$node->safe_psql('postgres', "SELECT pg_create_physical_replication_slot('standby', true)");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', <<'EOF');
primary_slot_name = 'standby'
wal_retrieve_retry_interval = 50ms
EOF
$standby->start;

# From now on what is acknowledged is on the standby as well.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$node->reload;
$node->safe_psql('postgres', join('', map { "SELECT stock_receive('sku-$_', " . ($_ < 4 ? 60 : 15) . ", 'opening');\n" } 0 .. SKUS - 1));

my $clients = Program->start([ 'node', "$FindBin::RealBin/../stock_clients.js" ],
	PGHOST => $node->host, PGUSER => scalar(getpwuid($<)), PGDATABASE => 'postgres',
	SEED => $seed, CLIENTS => CLIENTS, SKUS => SKUS);

sub counts
{
	$clients->say('counts');
	return decode_json($clients->line('counts') =~ s/^counts //r);
}

# Waits until the clients have got on, which they cannot if nobody answers them.
sub get_on
{
	my ($what, $steps) = @_;
	my $before = counts()->{acknowledged} // 0;
	my $deadline = time + DEADLINE_S;

	while ((counts()->{acknowledged} // 0) < $before + $steps)
	{
		die "the clients do not get on after $what (SEED=$seed)" if time > $deadline;
		usleep(10_000);
	}
	return;
}

sub start_clients
{
	my ($server) = @_;
	$clients->say('run ' . $server->port);
	return;
}

# Has the clients finish and the database compared with the ledger.
sub check
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$clients->say('stop');
	is($clients->line('stopped'), 'stopped', "$what: the clients come to an end");
	$clients->say('check');
	like($clients->line('checked'), qr/^checked [1-9]\d+ reservations$/, "$what: there is something to look at");
	my @wrong = grep { /^wrong/ } $clients->lines;
	ok(!@wrong, "$what: the database is as the ledger says") or diag(join("\n", @wrong));
	return;
}

# --- who is killed

# The pids of sessions; none if the server is just not there.
sub pids
{
	my ($where) = @_;
	my $pids = '';
	eval {
		$node->psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $where AND pid <> pg_backend_pid()",
			stdout => \$pids);
	};
	return shuffle(split(/\n/, $pids));
}

sub kill_one
{
	my ($where) = @_;
	my ($pid) = pids($where);
	return defined $pid && kill('KILL', $pid);
}

sub terminate_many
{
	my @pids = pids("backend_type = 'client backend'");
	splice @pids, int(CLIENTS / 3) if @pids > CLIENTS / 3;
	return kill('TERM', @pids) > 0;
}

# The postmaster and all its children, at once.
sub kill_server
{
	my @children = split(' ', `ps -o pid= --ppid $node->{_pid}`);

	$node->kill9;
	$node->{_pid} = undef;
	kill('KILL', @children);
	return 1;
}

# Its shared memory may be in use for a moment by those that are dying.
sub start_again
{
	my $deadline = time + DEADLINE_S;
	until ($node->start(fail_ok => 1))
	{
		die 'the server does not start' if time > $deadline;
		$node->{_pid} = undef;
		usleep(50_000);
	}
	return 1;
}

sub stop_and_start
{
	my ($how) = @_;
	$node->stop($how);
	$node->start;
	return 1;
}

my %killings = (
	client => sub { kill_one("backend_type = 'client backend'") },
	'a client in a transaction' => sub { kill_one("state = 'idle in transaction'") },
	sweeper => sub { kill_one("backend_type = 'idempotency sweeper'") },
	relay => sub { kill_one("backend_type = 'idempotency relay'") },
	checkpointer => sub { kill_one("backend_type = 'checkpointer'") },
	walsender => sub { kill_one("backend_type = 'walsender'") },
	'many clients' => \&terminate_many,
	'the whole server' => sub { kill_server() && start_again() },
	'the server, immediately' => sub { stop_and_start('immediate') },
	'the server, fast' => sub { stop_and_start('fast') },
);
my %killed;

start_clients($node);
get_on('their start', STEPS_BETWEEN);
my $end = time + $seconds;
while (time < $end)
{
	for my $what (shuffle(sort keys %killings))
	{
		# Whom it is about may not be there just now.
		my $deadline = time + DEADLINE_S;
		until ($killings{$what}->())
		{
			die "there is no $what" if time > $deadline;
			usleep(20_000);
		}
		$killed{$what}++;
		get_on("the death of $what", STEPS_BETWEEN);
	}
}

# --- the database, the same after a restart, and the same on the standby

check('after ' . sum0(values %killed) . ' deaths');
wait_until($node, 'SELECT count(*) = 0 FROM stock_hold WHERE expires_at <= now()', 'what has lapsed expires');
check('once it has expired');
$node->restart;
check('after a restart');
start_clients($node);
get_on('the restart', 5 * STEPS_BETWEEN);
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM stock_counters()'), '<=', ROOM,
	'there are no more counters than there is room for');
check('with counters loaded anew');

# The primary is lost amid the load.  Nobody may have been answered by what
# the standby has not got.
start_clients($node);
get_on('the check', 5 * STEPS_BETWEEN);
kill_server();
$node = $standby;
$node->promote;
start_clients($node);
get_on('the promotion', 5 * STEPS_BETWEEN);
check('after the promotion of the standby');

# --- was there anything to it?

my $counts = counts();
note(join("\n", map { "$_: $counts->{$_}" } sort keys %$counts));
my %least = (
	acknowledged => 1000, unknown => 5, 'rolled back' => 50, 'died before its end' => 5,
	'rolled back to savepoint' => 20, 'refused ID005' => 10, 'refused ID006' => 1, 'refused 53400' => 1,
	'reserve reserved' => 300, 'reserve insufficient' => 10, 'receive done' => 50, 'adjust done' => 20,
	'confirm done' => 100, 'confirm expired' => 5, 'cancel done' => 50, 'extend done' => 30,
	'reinstate done' => 20, 'reinstate already_reserved' => 10,
);
cmp_ok($counts->{$_} // 0, '>=', $least{$_}, "at least $least{$_}: $_") for sort keys %least;
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

$clients->stop;
done_testing();
