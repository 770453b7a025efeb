# Program: programs that a test starts, communicates with by lines, and ends.
#
# They are ended in any case, even if the test is killed.  Their standard error
# goes to the log directory of the test.
#
# Needs: nodejs

package Program;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(basename dirname);
use HTTP::Tiny;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(as_shop prepare_recipe start_recipe wait_for_lock post_to);

use constant { WAIT_S => 180, STOP_S => 15 };

my $recipes = abs_path(dirname(__FILE__) . '/../../../docs/recipes');
my $programs = abs_path(dirname(__FILE__) . '/../programs');
my @started;

# Starts a command with additional environment variables.
sub start
{
	my ($class, $command, %env) = @_;
	my $name = basename($command->[-1]);
	my $self = bless {
		name => $name,
		stdin => '',
		stdout => '',
		timer => IPC::Run::timer(WAIT_S),
		log => sprintf('%s/%s_%d_%s.log', $PostgreSQL::Test::Utils::log_path,
			basename($0, '.pl'), scalar(@started), $name)
	}, $class;

	local %ENV = (%ENV, %env);
	$self->{run} = IPC::Run::start([ qw(setpriv --pdeathsig KILL), @$command ],
		'<', \$self->{stdin}, '>', \$self->{stdout}, '2>', $self->{log}, $self->{timer});
	push @started, $self;
	return $self;
}

# Writes lines to its standard input.
sub say
{
	my ($self, @lines) = @_;
	$self->{stdin} .= "$_\n" for @lines;
	$self->{run}->pump_nb;
	return;
}

# Waits for a line of its output that begins with these words, and removes it.
# If none comes, returns an empty line and notes the reason.
sub line
{
	my ($self, $begin) = @_;
	my $line = qr/^(\Q$begin\E(?![^ \n]).*)\n/m;

	$self->{timer}->start(WAIT_S);
	return '' unless pump_until($self->{run}, $self->{timer}, \$self->{stdout}, $line);
	$self->{stdout} =~ s/$line//;
	return $1;
}

# Waits for such a line, which tells that the program has started.
sub wait_for_start
{
	my ($self, $begin) = @_;
	$self->line($begin) or die "$self->{name} does not start";
	return $self;
}

# Returns and removes all lines of its output that were not removed yet.
sub lines
{
	my ($self) = @_;
	$self->{run}->pump_nb if $self->{run}->pumpable;
	my @lines = split /\n/, $self->{stdout};
	$self->{stdout} = '';
	return @lines;
}

sub signal
{
	my ($self, $signal) = @_;
	$self->{run}->signal($signal);
	return;
}

# Waits until the program ends by itself.
sub wait_for_end
{
	my ($self) = @_;
	$self->{timer}->start(WAIT_S);
	$self->{run}->pump while $self->{run}->pumpable && !$self->{timer}->is_expired;
	my $ended = !$self->{run}->pumpable;
	$self->stop;
	return $ended;
}

# Ends the program, first by SIGTERM.
sub stop
{
	my ($self) = @_;
	my $run = delete $self->{run} or return;
	$run->kill_kill(grace => STOP_S);
	return;
}

# Ends the program as a crash does.
sub crash
{
	my ($self) = @_;
	$self->signal('KILL');
	$self->stop;
	return;
}

END
{
	local ($?, $@);
	for my $program (reverse @started)
	{
		eval { $program->stop };
	}
}

# --- the programs of docs/recipes

# Sets up a database for a recipe as its administrator would: the extension, an
# application role with idempotency_grant, and the tables.
sub prepare_recipe
{
	my ($node, $file, $db) = @_;
	$db //= 'postgres';

	$node->safe_psql($db, <<END);
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
SELECT 'CREATE ROLE shop LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop') \\gexec
SELECT idempotency_grant('shop');
GRANT CREATE ON SCHEMA public TO shop;
SET ROLE shop;
\\i $recipes/$file
END
	return;
}

# The environment of the application.
sub as_shop
{
	my ($node, $db) = @_;
	return (
		PGHOST => $node->host,
		PGPORT => $node->port,
		PGUSER => 'shop',
		PGDATABASE => $db // 'postgres');
}

# Options are NODE_ARGUMENTS and RESTART, with which a program that fails is
# started again; all others are environment variables.
sub start_recipe
{
	my ($file, %env) = @_;
	my @restart = delete $env{RESTART} ? "$programs/restart" : ();
	my @options = @{ delete $env{NODE_ARGUMENTS} // [] };
	return Program->start([ @restart, 'node', @options, "$recipes/$file" ], %env);
}

# A test that passes as soon as a session of the application waits for a lock in
# such a query.
sub wait_for_lock
{
	my ($node, $query, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'shop'"
			  . " AND wait_event_type = 'Lock' AND query LIKE '%$query%'"), $what);
}

# Sends a POST request and returns the status of the answer.
sub post_to
{
	my ($url, $body, %headers) = @_;
	return HTTP::Tiny->new(timeout => WAIT_S)->post($url, { headers => \%headers, content => $body })->{status};
}

1;
