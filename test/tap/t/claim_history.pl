# Clients claim, complete, fail, renew and forget the same few keys, with
# leases and ttls of milliseconds, in transactions of all isolation levels,
# with savepoints, prepared or killed, while the ring turns as fast as possible
# and the tables are reorganized.  A checker then verifies all answers.  If
# this fails, a key had two owners, or no owner could complete it, or an answer
# is not the one that was saved.  SEED repeats what the clients try, but not in
# which order they get there.
#
# HISTORY_SECONDS: how long; SEED.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Havoc;
use Program;
use Server;
use Test::More;
use Time::HiRes qw(time usleep);

use constant { CLIENTS => 12, MORTALS => 4, KEYS => 6, LEAST => 3, PATIENCE_S => 60 };

my $seconds = $ENV{HISTORY_SECONDS} // 12;
my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

# Only the clients turn the ring.
my $node = start_server('history', conf => <<EOF);
idempotency.databases = 'none'
max_prepared_transactions = @{[CLIENTS * 4]}
synchronous_commit = off
log_statement = none
deadlock_timeout = 20ms
EOF

my $clients = Program->start([ 'node', "$FindBin::RealBin/../programs/claim_clients.js" ],
	PGHOST => $node->host, PGUSER => scalar(getpwuid($<)), PGDATABASE => 'postgres',
	SEED => $seed, CLIENTS => CLIENTS, MORTALS => MORTALS, KEYS => KEYS);
my $havoc = Havoc->new($node, $clients, $seed);

# Each of these must have happened at least once to be checked.
my @wanted = ((map { "claim $_" } qw(claimed in_progress completed failed)),
	qw(maintained idem_switch idem_migrate idem_retire idem_truncate prepared),
	'complete done', 'complete ID001', 'complete ID002', 'complete ID003', 'renew done', 'fail done',
	'fail for good done', 'forget done', 'rolled back', 'rolled back to savepoint');

sub missing
{
	my $counts = $havoc->counts;
	return join(', ', grep { ($counts->{$_} // 0) < LEAST } @wanted);
}

# A busy machine needs more time.
my $end = time() + $seconds;
my $deadline = $end + PATIENCE_S;
$havoc->start_clients;
while (time() < $end || (missing() && time() < $deadline))
{
	$havoc->terminate("application_name = 'mortal'", 1);
	usleep(rand(400_000));
}
$havoc->stop_clients('the history');
is(missing(), '', 'there was some of everything');
$havoc->check("the history (SEED=$seed)");

done_testing();
