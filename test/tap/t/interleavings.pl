# Random transactions, short, long, aborted, nested and killed, in several
# sessions, while relays deliver and are sometimes killed, and segments of the
# log are closed and truncated: exactly the committed events arrive.  If this
# fails while skipped.pl passes, there is another way to lose or invent events;
# SEED repeats it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant {
	SESSIONS => 5,
	STEPS => 400,
	STEPS_PER_PASSING => 25,
	RELAY_DEATHS => 3,
};

my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
diag("seed $seed (repeat with SEED=$seed)") if $ENV{SEED};

my $receiver = Receiver->start;
my $node = start_server('interleavings', conf => <<'EOF');
idempotency.relays = 2
idempotency.sweep_interval = 20ms
idempotency.outbox_retention = 0
EOF
my $next_number = 1;
my (%committed, %refused);

my $witnesses = 0;

subscribe($node, $receiver, '/ok/all');
subscribe($node, $receiver, '/ok/shared', partitions => 3);
subscribe($node, $receiver, '/ok/witness', topics => "'{witness}'");
subscribe($node, $receiver, '/told/some', topics => "'{odd}'",
	retry_schedule => "'{0 s,10 ms,10 ms}'");

# A session and the events of its transaction, one list for each level of
# savepoints; no list outside a transaction.
sub new_actor
{
	return { session => session($node), levels => [] };
}

sub run
{
	my ($actor, $query) = @_;
	$actor->{session}->query_safe($query);
	return;
}

sub enqueue
{
	my ($actor, $count) = @_;
	my @numbers = map { $next_number++ } 1 .. $count;
	my $topic = $count % 2 ? 'odd' : 'even';
	my $key = int(rand(4));

	run($actor, "SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n, 'fail', n % 9 / 8), key => '$key'))"
		  . " FROM generate_series($numbers[0], $numbers[-1]) n");
	if (@{ $actor->{levels} })
	{
		push @{ $actor->{levels}[-1] }, @numbers;
	}
	else
	{
		$committed{$_} = $topic for @numbers;
	}
	$actor->{topic}{$_} = $topic for @numbers;
	return;
}

sub end
{
	my ($actor, $how) = @_;
	my @numbers = map { @$_ } @{ $actor->{levels} };

	run($actor, $how) if $how;
	if ($how eq 'COMMIT')
	{
		$committed{$_} = $actor->{topic}{$_} for @numbers;
	}
	else
	{
		$refused{$_} = 1 for @numbers;
	}
	$actor->{levels} = [];
	return;
}

# Makes the relay pass all open transactions: this event arrives nevertheless.
sub be_passed
{
	$committed{$next_number} = 'witness';
	enqueue_numbers($node, 'witness', $next_number++);
	return $receiver->wait_for('witness', events => ++$witnesses);
}

sub die_in_transaction
{
	my ($actor) = @_;
	my $pid = $actor->{session}->query_safe('SELECT pg_backend_pid()');

	sql("SELECT pg_terminate_backend($pid, 10000)");
	eval { $actor->{session}->quit };
	end($actor, '');
	$actor->{session} = session($node);
	return;
}

sub step_inside
{
	my ($actor) = @_;
	my $levels = $actor->{levels};
	my $dice = rand();

	if ($dice < 0.45) { enqueue($actor, 1 + int(rand(3))) }
	elsif ($dice < 0.60) { run($actor, 'SAVEPOINT s' . @$levels); push @$levels, [] }
	elsif ($dice < 0.68 && @$levels > 1)
	{
		run($actor, 'ROLLBACK TO s' . $#$levels);
		$refused{$_} = 1 for @{ $levels->[-1] };
		$levels->[-1] = [];
	}
	elsif ($dice < 0.76 && @$levels > 1)
	{
		run($actor, 'RELEASE s' . $#$levels);
		my $inner = pop @$levels;
		push @{ $levels->[-1] }, @$inner;
	}
	elsif ($dice < 0.90) { end($actor, 'COMMIT') }
	elsif ($dice < 0.98) { end($actor, 'ROLLBACK') }
	else { die_in_transaction($actor) }
	return;
}

sub step
{
	my ($actor) = @_;
	my $dice = rand();

	if (@{ $actor->{levels} }) { step_inside($actor) }
	elsif ($dice < 0.35) { enqueue($actor, 1 + int(rand(5))) }
	elsif ($dice < 0.40) { enqueue($actor, 600) }
	elsif ($dice < 0.50) { run($actor, 'SET synchronous_commit = ' . (rand() < 0.5 ? 'off' : 'on')) }
	else { run($actor, 'BEGIN'); $actor->{levels} = [ [] ] }
	return;
}

# The last session is slow: its transactions stay open longest.
my @actors = map { new_actor() } 1 .. SESSIONS;
for my $i (1 .. STEPS)
{
	my $actor = $actors[ rand() < 0.05 ? -1 : int(rand(SESSIONS - 1)) ];

	step($actor);
	be_passed() if $i % STEPS_PER_PASSING == 0;
	sql('SELECT pg_terminate_backend(pid) FROM pg_stat_activity'
		  . " WHERE backend_type = 'idempotency relay'")
	  if $i % int(STEPS / (RELAY_DEATHS + 1)) == 0;
}
for my $actor (@actors)
{
	end($actor, 'COMMIT') if @{ $actor->{levels} };
	$actor->{session}->quit;
}

my @odd = grep { $committed{$_} eq 'odd' } keys %committed;
$receiver->wait_for('all', events => scalar(keys %committed));
$receiver->wait_for('shared', events => scalar(keys %committed));
$receiver->wait_for('some', events => scalar(@odd));
wait_for_pass($node);

is($receiver->distinct_numbers('all'), join(' ', sort { $a <=> $b } keys %committed),
	'exactly what has committed arrives');
is($receiver->distinct_numbers('shared'), join(' ', sort { $a <=> $b } keys %committed),
	'also where two relays share the work');
is($receiver->distinct_numbers('some'), join(' ', sort { $a <=> $b } @odd),
	'also at a subscription to some of it, part of which fails');
cmp_ok(sql('SELECT max(segment) FROM outbox_ring'), '>', 3,
	'while segments of the log come and go');
cmp_ok(scalar(keys %refused), '>', 0, 'and some of it was rolled back');
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

done_testing();
