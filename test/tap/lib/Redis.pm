# Redis: a private Redis that listens on loopback only and stores nothing on
# disk.

package Redis;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Time::HiRes qw(sleep);

use constant { START_S => 60, PAUSE_S => 0.05 };

sub start
{
	my ($class) = @_;
	my $self = bless { port => PostgreSQL::Test::Cluster::get_free_port() }, $class;

	$self->{server} = Program->start([
			qw(redis-server --bind 127.0.0.1 --save), '', qw(--appendonly no --dir), PostgreSQL::Test::Utils::tempdir,
			'--port', $self->{port} ]);
	for (1 .. START_S / PAUSE_S)
	{
		return $self if $self->command('PING') eq 'PONG';
		sleep PAUSE_S;
	}
	die 'Redis does not start';
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
