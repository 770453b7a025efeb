# Rabbit: a private RabbitMQ that listens on loopback only and writes only below
# the directory of the test.  It uses the programs of the system's RabbitMQ, but
# none of its files.
#
# Needs: rabbitmq-server docs/recipes/node_modules

package Rabbit;

use strict;
use warnings FATAL => 'all';

use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Test::More;
use Time::HiRes qw(sleep);

use constant { START_S => 180, EMPTY_S => 60, PAUSE_S => 0.05, ANSWER_TRIES => 10 };

# Debian's scripts in /usr/sbin require the user rabbitmq; these do not.
my ($programs) = grep { -x "$_/rabbitmq-server" } sort glob('/usr/lib/rabbitmq/lib/*/sbin');

# The limit of messages is in bytes.
sub start
{
	my ($class, %params) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir;
	$programs or die 'RabbitMQ is not installed';
	my ($port, $distribution, $epmd, $control) =
	  map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 4;
	my $self = bless { port => $port, dir => $dir }, $class;

	append_to_file("$dir/rabbitmq.conf", "listeners.tcp.1 = 127.0.0.1:$port\nlog.console = false\n"
		  . ($params{max_message_size} ? "max_message_size = $params{max_message_size}\n" : ''));
	append_to_file("$dir/plugins", "[].\n");

	# Server and tools find each other by Erlang's port mapper, in the
	# foreground.
	my %erlang = (
		HOME => $dir, ERL_EPMD_PORT => $epmd, ERL_EPMD_ADDRESS => '127.0.0.1',
		RABBITMQ_NODENAME => 'test@localhost', RABBITMQ_CONF_ENV_FILE => '/dev/null');
	$self->{control} = {
		%erlang,
		RABBITMQ_CTL_DIST_PORT_MIN => $control, RABBITMQ_CTL_DIST_PORT_MAX => $control,
		RABBITMQ_CTL_ERL_ARGS => '-kernel inet_dist_use_interface {127,0,0,1}' };
	$self->{mapper} = Program->start([qw(epmd -address 127.0.0.1 -port), $epmd], %erlang);
	_wait_for_port($epmd) or die 'epmd does not start';

	# As under systemd, the script is replaced by the server, which obeys
	# SIGTERM.
	$self->{environment} = { %erlang,
		RUNNING_UNDER_SYSTEMD => 1,
		RABBITMQ_CONFIG_FILE => "$dir/rabbitmq.conf",
		RABBITMQ_ADVANCED_CONFIG_FILE => "$dir/none",
		RABBITMQ_ENABLED_PLUGINS_FILE => "$dir/plugins",
		RABBITMQ_FEATURE_FLAGS_FILE => "$dir/feature_flags",
		RABBITMQ_GENERATED_CONFIG_DIR => "$dir/generated",
		RABBITMQ_MNESIA_BASE => "$dir/mnesia",
		RABBITMQ_LOG_BASE => "$dir/log",
		RABBITMQ_PID_FILE => "$dir/pid",
		RABBITMQ_DIST_PORT => $distribution,
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS => '-kernel inet_dist_use_interface {127,0,0,1}' };
	return $self->start_again;
}

# Starts the server with the messages that it has written to disk.
sub start_again
{
	my ($self) = @_;
	$self->{server} = Program->start(["$programs/rabbitmq-server"], %{ $self->{environment} });
	_wait_for_port($self->{port}) or die 'RabbitMQ does not start';
	return $self;
}

# Ends the server as a crash does.
sub kill
{
	my ($self) = @_;
	$self->{server}->crash;
	return;
}

sub _wait_for_port
{
	my ($port) = @_;
	for (1 .. START_S / PAUSE_S)
	{
		return 1 if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
		sleep PAUSE_S;
	}
	return 0;
}

sub url
{
	my ($self) = @_;
	return "amqp://127.0.0.1:$self->{port}";
}

# Runs rabbitmqctl, which takes a second or two.
sub control
{
	my ($self, @command) = @_;
	local %ENV = (%ENV, %{ $self->{control} });
	my ($stdout, $stderr) = run_command([ "$programs/rabbitmqctl", '--quiet', @command ]);
	return $stdout;
}

# Waits until a queue is empty, without messages that wait or that a consumer
# has not acknowledged.
sub wait_until_empty
{
	my ($self, $queue, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time + EMPTY_S;
	my $left;

	do
	{
		$left = $self->messages($queue);
	} while ($left ne '0 0' && time < $until);
	return is($left, '0 0', $what);
}

# How many messages of a queue wait, and how many are not acknowledged yet.  A
# busy server may not answer at first.
sub messages
{
	my ($self, $queue) = @_;
	for (1 .. ANSWER_TRIES)
	{
		my ($ready, $out) = $self->control(qw(list_queues --no-table-headers
			  name messages_ready messages_unacknowledged)) =~ /^\Q$queue\E\t(\d+)\t(\d+)$/m;
		return "$ready $out" if defined $out;
	}
	return 'no queue';
}

sub stop
{
	my ($self) = @_;
	$self->{$_}->stop for qw(server mapper);
	return;
}

1;
