# "Publish to a broker", with a real RabbitMQ.  If this fails, events are lost
# or out of order when RabbitMQ, the program or the database server crashes, or
# one message that RabbitMQ refuses holds up all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Publisher;
use Rabbit;
use Test::More;

use constant { MESSAGE_BYTES_MAX => 65536 };

my $rabbit = Rabbit->start(max_message_size => MESSAGE_BYTES_MAX);

declare_messages($rabbit);
start_publisher('to_rabbitmq.js', AMQP_URL => $rabbit->url);
check_publisher($rabbit,
	messages => sub { read_messages($rabbit) },
	refused => {
		unroutable => { topic => 'stray.event' },
		large => { payload => 'to_jsonb(repeat(\'x\', ' . MESSAGE_BYTES_MAX . '))' } });
$rabbit->stop;
done_testing();
