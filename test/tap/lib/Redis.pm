# Redis: a private Redis that listens on loopback only. It stores nothing on
# disk, unless the test asks for a log that is flushed with each command.
#
# Needs: redis-server redis-tools docs/recipes/node_modules

package Redis;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Time::HiRes qw(sleep);

use constant { START_S => 180, PAUSE_S => 0.05 };

# Parameters: durable => 1, and options as in the configuration file.
sub start
{
	my ($class, %params) = @_;
	my $self = bless { port => PostgreSQL::Test::Cluster::get_free_port(), dir => PostgreSQL::Test::Utils::tempdir }, $class;
	my @log = delete $params{durable} ? qw(--appendonly yes --appendfsync always) : qw(--appendonly no);

	$self->{options} = [ @log, map { ("--$_", $params{$_}) } sort keys %params ];
	return $self->start_again;
}

sub start_again
{
	my ($self) = @_;
	$self->{server} = Program->start([
			qw(redis-server --bind 127.0.0.1 --save), '', @{ $self->{options} }, '--dir', $self->{dir},
			'--port', $self->{port} ]);
	for (1 .. START_S / PAUSE_S)
	{
		return $self if $self->command('PING') =~ /^PONG/;
		sleep PAUSE_S;
	}
	die 'Redis does not start';
}

# Ends the server as a crash does.
sub kill
{
	my ($self) = @_;
	$self->{server}->crash;
	return;
}

sub url
{
	my ($self) = @_;
	return "redis://127.0.0.1:$self->{port}";
}

# Runs redis-cli; returns its output in one line.
sub command
{
	my ($self, @command) = @_;
	my ($stdout, $stderr) = run_command([ 'redis-cli', '-p', $self->{port}, @command ]);
	return $stdout =~ s/\s+/ /gr;
}

sub stop
{
	my ($self) = @_;
	$self->{server}->stop;
	return;
}

1;
