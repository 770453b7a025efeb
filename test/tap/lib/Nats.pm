# Nats: a private NATS with JetStream that listens on loopback only and writes
# only below the directory of the test.
#
# Needs: nats-server docs/recipes/node_modules

package Nats;

use strict;
use warnings FATAL => 'all';

use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Time::HiRes qw(sleep);

use constant { START_S => 180, PAUSE_S => 0.05 };

# Debian's package has it in a directory of daemons.
my ($program) = grep { -x } map { "$_/nats-server" } split(/:/, $ENV{PATH}), qw(/usr/sbin /usr/local/sbin);

# The limit of messages is in bytes.
sub start
{
	my ($class, %params) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my $self = bless { port => PostgreSQL::Test::Cluster::get_free_port(), config => "$dir/nats.conf" }, $class;

	$program or die 'NATS is not installed';
	append_to_file($self->{config}, <<END);
listen: 127.0.0.1:$self->{port}
jetstream { store_dir: "$dir" }
max_payload: $params{max_payload}
END
	return $self->start_again;
}

sub start_again
{
	my ($self) = @_;
	$self->{server} = Program->start([ $program, '--config', $self->{config} ]);
	for (1 .. START_S / PAUSE_S)
	{
		return $self if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port});
		sleep PAUSE_S;
	}
	die 'NATS does not start';
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
	return "nats://127.0.0.1:$self->{port}";
}

sub stop
{
	my ($self) = @_;
	$self->{server}->stop;
	return;
}

1;
