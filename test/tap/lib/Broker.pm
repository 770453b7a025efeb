# Broker: a server of Kafka's protocol, with topics, partitions, consumer groups
# and their offsets, on loopback and in memory.  It is the mock broker that
# librdkafka has for tests, since Debian has no package of Kafka.
#
# Needs: kcat docs/recipes/node_modules

package Broker;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Time::HiRes qw(sleep);

use constant { START_S => 180, PAUSE_S => 0.05 };

my $programs = abs_path(dirname(__FILE__) . '/../programs');

sub start
{
	my ($class) = @_;

	# A producer with a broker of its own, which never produces a message.
	my $server = Program->start([qw(kcat -P -b test -X test.mock.num.brokers=1 -t none)]);
	for (1 .. START_S / PAUSE_S)
	{
		return bless { server => $server, brokers => $1 }, $class
		  if slurp_file($server->{log}) =~ /replaced with (127\.0\.0\.1:\d+)/;
		sleep PAUSE_S;
	}
	die 'the broker does not start';
}

# The address of the broker, as host and port.
sub brokers
{
	my ($self) = @_;
	return $self->{brokers};
}

# Starts a consumer of docs/recipes and waits until it has partitions.  Options
# are PRELOAD, a program of ../programs that is loaded into it; all others are
# environment variables.
sub start_consumer
{
	my ($self, $file, %env) = @_;
	my @preload = ('kafka_leader.js', grep { defined } delete $env{PRELOAD});

	# This broker does not answer earlier when messages come, as Kafka does.
	return start_recipe($file, KAFKA_BROKERS => $self->brokers, FETCH_MS => 50, SESSION_MS => 4500,
		NODE_ARGUMENTS => [ map { ('--require', "$programs/$_") } @preload ], %env)->wait_for_start('consuming');
}

# Until thaw(), it does not answer.  It would lose everything by a crash.
sub freeze
{
	my ($self) = @_;
	$self->{server}->signal('STOP');
	return;
}

sub thaw
{
	my ($self) = @_;
	$self->{server}->signal('CONT');
	return;
}

# All messages of a topic, as kcat prints them.
sub messages
{
	my ($self, $topic) = @_;
	my ($output) = run_command([ qw(kcat -C -q -e -J -o beginning -b), $self->{brokers}, '-t', $topic ]);
	return map { decode_json($_) } split /\n/, $output;
}

# The broker stores nothing, and would not end before its input does.
sub stop
{
	my ($self) = @_;
	$self->{server}->crash;
	return;
}

1;
