# "Publish to a broker", with a real NATS JetStream.  If this fails, events are
# lost, out of order or there twice when NATS, the program or the database
# server crashes, or one message that NATS refuses holds up all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Nats;
use Publisher;
use Test::More;

use constant { MESSAGE_BYTES_MAX => 65536 };

my $nats = Nats->start(max_payload => MESSAGE_BYTES_MAX);

declare_messages($nats);
start_publisher('to_nats.js', NATS_URL => $nats->url);
check_publisher($nats,
	messages => sub { read_messages($nats) },
	repeats => 0,
	refused => {
		'in no stream' => { topic => 'stray.event' },
		'no subject' => { topic => 'order. ' },
		large => { payload => 'to_jsonb(repeat(\'x\', ' . MESSAGE_BYTES_MAX . '))' } });
$nats->stop;
done_testing();
