# Growth: how the cost of a call grows with the number of rows.  The cost is
# not a time, but counts that are the same in every run: buffers, and rows that
# the nodes of all plans have returned or removed (auto_explain, with the
# statements in functions).
#
# A shape is a set-up and the calls that are measured after it:
#
#   growth('dead letters',
#       base => "SELECT outbox_subscribe('s', 'http://127.0.0.1:9/')",
#       rows => 'INSERT INTO ... SELECT ... FROM generate_series(:from, :to) i',
#       calls => [
#           [ 'a page of outbox_dead', 'SELECT ... LIMIT 10', 'constant' ],
#           [ 'outbox_discard', "SELECT outbox_discard('s')", 'linear' ] ]);
#
# rows inserts the rows 1 to n; each call is measured and rolled back.  Then
# rows inserts the rows n + 1 to 10 n, and each call is measured again.  :n in a
# call is the number of rows.  All of that happens in each of these states:
#
#   no statistics   autovacuum is off, as right after a restore
#   statistics      after VACUUM ANALYZE
#   old plans       the session's plans were made while the tables were empty
#                   and analyzed
#   old snapshot    a transaction is older than all rows, and churn, a parameter
#                   of such a shape, has left dead ones that it may still see
#
# A call may grow as what it returns or changes: "constant", or "linear".
# Other parameters: worker => 1 uses the settings of base/worker.c; n; states.
# With old plans, the calls are made before there are rows, and must not fail.

package Growth;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use List::Util qw(max sum0);
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

our @EXPORT = qw(growth plans_in);

use constant {
	ROWS => 500,          # n
	FACTOR => 10,
	CONSTANT_MAX => 2,    # as many times the cost at n
	LINEAR_MAX => 25,     # plans for few rows are cheaper
	NOISE => 100,         # buffers or rows: of catalogs, and of a higher tree
	WARM_CALLS => 6,      # then a plan is generic
};

my @states = ('no statistics', 'statistics', 'old plans', 'old snapshot');
my @session_settings = (
	"LOAD 'auto_explain'",
	'SET auto_explain.log_min_duration = 0',
	'SET auto_explain.log_analyze = on',
	'SET auto_explain.log_buffers = on',
	'SET auto_explain.log_timing = off',
	'SET auto_explain.log_nested_statements = on',
	'SET log_statement = none',
	'SET max_parallel_workers_per_gather = 0',
	"SET statement_timeout = '60 s'");
my @worker_settings =
  map { "SET $_ = off" } qw(enable_seqscan enable_bitmapscan enable_sort jit);

my $node;
my $databases = 0;

# Makes the server for the first shape.
sub _start
{
	return if $node;
	$node = start_server('growth', conf => <<EOF);
autovacuum = off
idempotency.databases = 'none'
synchronous_commit = off
max_prepared_transactions = 2
EOF
	$node->safe_psql('template1', 'CREATE EXTENSION idempotency');
	return;
}

sub _session
{
	my ($db, $worker) = @_;
	my $session = session($node, $db);

	$session->query("$_;") for @session_settings, $worker ? @worker_settings : ();
	return $session;
}

# Returns the plans in a log of auto_explain: the query, and its buffers and
# rows.  With a pid, only those of that process.
sub plans_in
{
	my ($log, $pid) = @_;
	my (@plans, $plan, $loops);

	for (split /\n/, $log)
	{
		if (/^\d[-\d]+ [:.\d]+ \S+ \[(\d+)\] /)
		{
			$plan = undef;
			next if $pid && $1 != $pid || !/LOG:  duration: .* plan:$/;
			$plan = { query => '', buffers => 0, rows => 0 };
			push @plans, $plan;
		}
		next unless $plan;
		if (/\(actual rows=([\d.]+) loops=(\d+)\)/)
		{
			$loops = $2;
			$plan->{rows} += (1 + $1) * $loops;
		}
		elsif (/Rows Removed by [^:]+: (\d+)/)
		{
			$plan->{rows} += $1 * $loops;
		}
		elsif (/Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/)
		{
			$plan->{buffers} = max($plan->{buffers}, ($1 // 0) + ($2 // 0));
		}
		elsif (!defined $loops || !$plan->{rows})
		{
			$plan->{query} .= $_ =~ s/^\s*(?:Query Text: )?/ /r;
		}
	}
	return @plans;
}

# Returns the buffers and rows of a call, which is rolled back; undef if it
# fails.  The first call may have to read the catalogs.
sub _cost
{
	my ($cost, $again) = map { $_ && $_->{buffers} > NOISE ? ($_, _cost_once(@_)) : $_ } _cost_once(@_);

	return $again && $again->{buffers} < $cost->{buffers} ? $again : $cost;
}

# The buffers of a statement include those of statements within it.
sub _cost_once
{
	my ($session, $call, $n) = @_;
	my $offset = -s $node->logfile;

	$session->query("BEGIN;\n" . ($call =~ s/:n\b/$n/gr) . ";\nROLLBACK;");
	$session->{stderr} = '';
	my $log = slurp_file($node->logfile, $offset);
	if ($log =~ /(?:ERROR|FATAL|PANIC): +(.*)/)
	{
		diag("$call: $1");
		return undef;    ## no critic - one element of a list
	}
	my @plans = plans_in($log);
	return {
		buffers => max(0, map { $_->{buffers} } @plans),
		rows => sum0(map { $_->{rows} } @plans) };
}

# A test of what a call has cost at n rows, and at ten times as many.
sub _judge
{
	my ($name, $growth, $few, $many) = @_;
	my %factor = (constant => CONSTANT_MAX, linear => LINEAR_MAX);
	local $Test::Builder::Level = $Test::Builder::Level + 2;

	die "$growth?" unless $factor{$growth};
	return fail("$name: it fails, or takes too long") unless $few && $many;
	ok(0 == grep({ $many->{$_} > $factor{$growth} * $few->{$_} + NOISE } keys %$few), "$name: $growth");
	my $counts = join(', ', map { "$_ $few->{$_}, then $many->{$_}" } sort keys %$few);
	return note("$name: $counts");
}

sub _measure
{
	my ($shape, $state) = @_;
	my $n = $shape->{n} // ROWS;
	my @calls = @{ $shape->{calls} };
	my $db = 'growth_' . ++$databases;
	my ($session, $old, @costs);

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, $shape->{base}) if $shape->{base};
	if ($state eq 'old plans')
	{
		$node->safe_psql($db, 'VACUUM ANALYZE');
		$session = _session($db, $shape->{worker});
		for my $call (@calls)
		{
			_cost($session, $call->[1], 1) for 1 .. WARM_CALLS;
		}
	}
	elsif ($state eq 'old snapshot')
	{
		$old = session($node, $db);
		$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current();');
	}
	for ([ 1, $n ], [ $n + 1, FACTOR * $n ])
	{
		my ($from, $to) = @$_;
		$node->safe_psql($db, $shape->{rows} =~ s/:from\b/$from/gr =~ s/:to\b/$to/gr);
		$node->safe_psql($db, $shape->{churn}) if $old;
		$node->safe_psql($db, 'VACUUM ANALYZE') if $state eq 'statistics';
		my $used = $session // _session($db, $shape->{worker});
		push @costs, [ map { _cost($used, $_->[1], $to) } @calls ];
		$used->quit unless $session;
	}
	$_->quit for grep { $_ } $session, $old;
	$node->safe_psql('postgres', "DROP DATABASE $db");
	_judge("$shape->{name}, $state: $calls[$_][0]", $calls[$_][2], $costs[0][$_], $costs[1][$_])
	  for 0 .. $#calls;
	return;
}

sub growth
{
	my ($name, %shape) = @_;
	my $states = $shape{states} // [ grep { $_ ne 'old snapshot' || $shape{churn} } @states ];

	_start();
	_measure({ name => $name, %shape }, $_) for @$states;
	return;
}

1;
