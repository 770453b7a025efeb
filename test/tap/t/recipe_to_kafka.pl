# "Publish to a broker", with Kafka's protocol.  If this fails, events are lost,
# out of order or in the wrong partition when the broker does not answer for a
# time, or the program or the database server crashes; or one event that cannot
# be published holds up all others.
#
# Debian has no Kafka.  The mock broker of librdkafka keeps messages in memory,
# so it is frozen here, and does not crash; it refuses no message, and does not
# drop copies.

use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(sha256);
use FindBin;
use lib "$FindBin::RealBin/../lib";
use Broker;
use JSON::PP;
use Publisher;
use Test::More;

use constant { PARTITIONS => 4 };    # of a topic, in this broker

my $broker = Broker->start;

sub messages
{
	return map { +{ %$_, %{ { @{ $_->{headers} } } }, payload => JSON::PP->new->allow_nonref->decode($_->{payload}) } }
	  map { $broker->messages($_) } qw(order.placed order.ok);
}

sub partition_of
{
	my ($key) = @_;
	my ($customer) = split m{/}, $key;
	return unpack('N', sha256($customer)) % PARTITIONS;
}

start_publisher('to_kafka.js', KAFKA_BROKERS => $broker->brokers,
	NODE_ARGUMENTS => [ '--require', "$FindBin::RealBin/../programs/any_controller.js" ]);
check_publisher($broker,
	kill => 'freeze',
	start_again => 'thaw',
	messages => \&messages,
	refused => { 'no topic' => { topic => 'order. ' } });

my %used = map { $_->{partition} => 1 } messages();
is(scalar(grep { $_->{partition} != partition_of($_->{key}) } messages()), 0,
	'the function of the program has chosen the partition of each message');
cmp_ok(scalar(keys %used), '>', 1, 'these are several partitions');
$broker->stop;
done_testing();
