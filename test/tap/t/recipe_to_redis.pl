# "Publish to a broker", with real Redis Streams.  If this fails, events are
# lost, out of order or there twice when Redis, the program or the database
# server crashes, or one entry that Redis refuses holds up all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Publisher;
use Redis;
use Test::More;

use constant { STRING_BYTES_MAX => 1048576 };    # the smallest limit that Redis allows

my $redis = Redis->start(durable => 1, 'proto-max-bulk-len' => STRING_BYTES_MAX);

start_publisher('to_redis.js', REDIS_URL => $redis->url);
check_publisher($redis,
	messages => sub { read_messages($redis) },
	repeats => 0,
	refused => { large => { payload => 'to_jsonb(repeat(\'x\', ' . STRING_BYTES_MAX . '))' } });
$redis->stop;
done_testing();
