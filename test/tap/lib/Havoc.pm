# Havoc: kills a server or its processes, in one way after another, and after
# each waits until the clients of crowd.js make progress again.
#
# Needs: procps docs/recipes/node_modules

package Havoc;

use strict;
use warnings FATAL => 'all';

use JSON::PP;
use List::Util qw(shuffle sum0);
use PostgreSQL::Test::Cluster;
use Program;
use Test::More;
use Time::HiRes qw(usleep);

use constant { DEADLINE_S => 60 };

# For $node and the clients.  The seed is printed, so that a run can be
# repeated.
sub new
{
	my ($class, $node, $clients, $seed) = @_;
	return bless { node => $node, clients => $clients, seed => $seed, killed => {} }, $class;
}

# --- the clients

# Connects the clients to another server if given, such as a promoted standby.
sub start_clients
{
	my ($self, $node) = @_;
	$self->{node} = $node if $node;
	$self->{clients}->say('run ' . $self->{node}->port);
	return;
}

# How often each kind of event has happened.
sub counts
{
	my ($self) = @_;
	$self->{clients}->say('counts');
	return decode_json($self->{clients}->line('counts') =~ s/^counts //r);
}

# Waits until the clients make progress, for which they need answers.
sub get_on
{
	my ($self, $what, $steps) = @_;
	my $before = $self->counts->{acknowledged} // 0;
	my $deadline = time + DEADLINE_S;

	while (($self->counts->{acknowledged} // 0) < $before + $steps)
	{
		die "the clients do not get on after $what (SEED=$self->{seed})" if time > $deadline;
		usleep(10_000);
	}
	return;
}

sub stop_clients
{
	my ($self, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$self->{clients}->say('stop');
	return is($self->{clients}->line('stopped'), 'stopped', "$what: the clients come to an end");
}

# Compares the database with the clients' ledger.
sub check
{
	my ($self, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$self->{clients}->say('check');
	like($self->{clients}->line('checked'), qr/^checked [1-9]\d+ /, "$what: there is something to look at");
	my @wrong = grep { /^wrong/ } $self->{clients}->lines;
	return ok(!@wrong, "$what: the database is as the ledger says") || diag(join("\n", @wrong));
}

# --- deaths; true if there was a process to kill

# The pids of sessions; none if the server does not run at the moment.
sub _pids
{
	my ($self, $where) = @_;
	my $pids = '';
	eval {
		$self->{node}->psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $where AND pid <> pg_backend_pid()",
			stdout => \$pids);
	};
	return shuffle(split(/\n/, $pids));
}

sub kill_one
{
	my ($self, $where) = @_;
	my ($pid) = $self->_pids($where);
	return defined $pid && kill('KILL', $pid);
}

sub kill_type
{
	my ($self, $type) = @_;
	return $self->kill_one("backend_type = '$type'");
}

# Terminates at most so many sessions, as pg_terminate_backend does.
sub terminate
{
	my ($self, $where, $most) = @_;
	my @pids = $self->_pids($where);
	splice @pids, $most if @pids > $most;
	return kill('TERM', @pids) > 0;
}

# Kills only the postmaster; its children have to notice that.
sub kill_postmaster
{
	my ($self) = @_;
	$self->{node}->kill9;
	$self->{node}{_pid} = undef;
	return 1;
}

# Kills the postmaster and all its children at once.
sub kill_server
{
	my ($self) = @_;
	my @children = split(' ', `ps -o pid= --ppid $self->{node}{_pid}`);

	$self->kill_postmaster;
	kill('KILL', @children);
	return 1;
}

# Processes that are still exiting may use the shared memory for a moment.
sub start_again
{
	my ($self) = @_;
	my $deadline = time + DEADLINE_S;
	until ($self->{node}->start(fail_ok => 1))
	{
		die "the server does not start (SEED=$self->{seed})" if time > $deadline;
		$self->{node}{_pid} = undef;
		usleep(50_000);
	}
	return 1;
}

sub stop_and_start
{
	my ($self, $how) = @_;
	$self->{node}->stop($how);
	$self->{node}->start;
	return 1;
}

# --- all of them

# Runs each kind of death once, in a random order, and then again until the time
# is over.  Between two deaths the clients take a number of steps, plus up to as
# many again.
sub wreak
{
	my ($self, $seconds, $steps, %killings) = @_;
	my $end = time + $seconds;

	do
	{
		for my $what (shuffle(sort keys %killings))
		{
			$self->_kill($what, $killings{$what});
			$self->get_on("killing $what", $steps + int(rand($steps)));
		}
	} while (time < $end);
	return;
}

# The target may not exist at the moment.
sub _kill
{
	my ($self, $what, $killing) = @_;
	my $deadline = time + DEADLINE_S;

	until ($killing->())
	{
		die "there is no $what (SEED=$self->{seed})" if time > $deadline;
		usleep(20_000);
	}
	$self->{killed}{$what}++;
	note("killed: $what");
	return;
}

sub deaths
{
	my ($self) = @_;
	return sum0(values %{ $self->{killed} });
}

1;
