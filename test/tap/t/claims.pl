# Claims of several sessions, with prepared transactions, timeouts, deadlocks
# and old snapshots: a key has one owner, and no session waits without need.
# If this fails, a request takes effect twice, or hangs.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;

my $node = start_server('claims', conf => <<EOF);
max_prepared_transactions = 10
deadlock_timeout = 100ms
EOF

# Starts a command that has to wait for a lock, and waits until it does so.
sub start_waiting
{
	my ($session, $command) = @_;
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/begun/, "\\echo begun\n$command;\n");
	return $node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
}

# The output of the preceding commands, including errors.
sub outcome_of
{
	my ($session) = @_;
	my $output = $session->query('SELECT');

	$output .= $session->{stderr};
	$session->{stderr} = '';
	$output =~ s/^\s+|\s+$//g;
	return $output;
}

my $claim = 'SELECT outcome FROM idem_claim';

# --- a prepared transaction

for my $end ('COMMIT PREPARED', 'ROLLBACK PREPARED')
{
	my ($key) = lc($end) =~ /^(\w+)/;
	my $session = session($node);

	sql("BEGIN; SELECT idem_claim('$key'); PREPARE TRANSACTION '$key'");
	is(sql("$claim('$key', wait => false)"), 'in_progress',
		"$end: with wait => false a claim of a prepared transaction is in progress");
	ok(start_waiting($session, "$claim('$key')"), "$end: otherwise another claimer waits");
	sql("$end '$key'");
	is(outcome_of($session), $end =~ /^COMMIT/ ? 'completed' : 'claimed',
		"$end: and then learns what became of it");
	$session->quit;
}
sql("BEGIN; SELECT idem_claim('crash'); PREPARE TRANSACTION 'crash'");
$node->stop('immediate');
$node->start;
is(sql("$claim('crash', wait => false)"), 'in_progress', 'a prepared claim outlives a crash');
sql("COMMIT PREPARED 'crash'");
is(sql("$claim('crash')"), 'completed', 'and can be committed after it');

# --- lock_timeout

my ($one, $two) = (session($node), session($node));
$one->query_safe("BEGIN; SELECT idem_claim('held')");
is(error_code($node, 'postgres', "SET lock_timeout = '50ms'; SELECT idem_claim('held')"), '55P03',
	'lock_timeout is honoured');
is(error_code($node, 'postgres', "SET statement_timeout = '50ms'; SELECT idem_claim('held')"), '57014',
	'so is statement_timeout');
is(sql("SET lock_timeout = '50ms'; $claim('held', wait => false)"), 'in_progress',
	'with wait => false nobody waits');
$one->query_safe('ROLLBACK');
is(sql("$claim('held')"), 'claimed', 'what was rolled back was never claimed');

# --- a deadlock

$one->query_safe("BEGIN; SELECT idem_claim('a')");
$two->query_safe("BEGIN; SELECT idem_claim('b')");
$two->query_safe('\set VERBOSITY sqlstate');
$one->query_safe('\set VERBOSITY sqlstate');
start_waiting($one, "$claim('b')");
$two->query("$claim('a')");
my @outcomes;
push @outcomes, $two->{stderr} =~ /ERROR: +(\w+)/ ? $1 : 'survived';
$two->{stderr} = '';
$two->query_safe('COMMIT');
push @outcomes, outcome_of($one) =~ /ERROR: +(\w+)/ ? $1 : 'survived';
$one->query_safe('COMMIT');
is(join(' ', sort @outcomes), '40P01 survived',
	'of two that claim in opposite order one is told of the deadlock');
is(sql(q(SELECT count(*) FROM idem_key WHERE key IN ('a', 'b'))), '2',
	'and the other has both keys');

# --- a server process that dies

$one->query_safe("BEGIN; SELECT idem_claim('orphan')");
start_waiting($two, "$claim('orphan')");
my $pid = sql("SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'");
sql("SELECT pg_terminate_backend($pid)");
is(outcome_of($two), 'claimed', 'when the owner dies the one who waits gets the key');
eval { $one->quit };
$one = session($node);

# --- snapshots older than the claim

for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my ($key) = lc($level) =~ /^(\w+)/;

	$one->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM idem_key");
	sql("$claim('$key')");
	sql("SELECT idem_claim('$key-leased', lease => '1 h')");
	is($one->query_safe("$claim('$key')"), 'completed',
		"$level sees a key that was committed after its snapshot");
	is($one->query_safe("$claim('$key-leased')"), 'in_progress',
		"$level sees a lease that began after its snapshot");
	is($one->query_safe("$claim('$key-own')"), 'claimed', "$level can claim another");
	$one->query_safe('COMMIT');
	is(sql("$claim('$key-own')"), 'completed', "$level: and so it stays");
}

# --- one lease that ends, and many claimers

sql("SELECT idem_claim('lease', lease => '1 ms')");
my @sessions = map { session($node) } 1 .. 6;
$one->query_safe("BEGIN; SELECT FROM idem_key_0 WHERE key = 'lease' FOR UPDATE");
start_waiting($_, "SELECT outcome, attempt FROM idem_claim('lease', lease => '1 h')") for @sessions;
$one->query_safe('COMMIT');
is(join(' ', sort map { outcome_of($_) } @sessions),
	join(' ', 'claimed|2', ('in_progress|2') x 5), 'a lease that has run out gets one new owner');
$_->quit for @sessions, $one, $two;

done_testing();
