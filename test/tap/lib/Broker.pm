# Broker: what speaks the protocol of Kafka, with topics, partitions, consumer
# groups and their offsets, on loopback and in memory.  It is the one that
# librdkafka has for tests; Debian has no package of Kafka.

package Broker;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Program;
use Time::HiRes qw(sleep);

use constant { START_S => 60, PAUSE_S => 0.05 };

sub start
{
	my ($class) = @_;

	# A producer that has a broker of its own, and never produces anything.
	my $server = Program->start([qw(kcat -P -b test -X test.mock.num.brokers=1 -t none)]);
	for (1 .. START_S / PAUSE_S)
	{
		return bless { server => $server, brokers => $1 }, $class
		  if slurp_file($server->{log}) =~ /replaced with (127\.0\.0\.1:\d+)/;
		sleep PAUSE_S;
	}
	die 'the broker does not start';
}

# Where it is, as host and port.
sub brokers
{
	my ($self) = @_;
	return $self->{brokers};
}

# It has nothing to lose, and would not end before its input does.
sub stop
{
	my ($self) = @_;
	$self->{server}->crash;
	return;
}

1;
