# An answer over TLS may have a body of any length that is allowed.  If this
# fails, requests to endpoints that answer more than a few words time out, and
# events that were accepted are sent again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;
use Tls;

# Around the sizes of buffers: ours, and those of libcurl and TLS.
my @sizes = (0, 1000, 1024, 1100, 16384, 20000, 60000);

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/server");
my $endpoint = Program->start([ 'node', "$FindBin::RealBin/../programs/bodies.js", "$dir/server" ]);
my ($port) = $endpoint->line('port') =~ /(\d+)/;

$ENV{SSL_CERT_FILE} = "$dir/server.crt";
my $node = start_server('answer_bodies');
for my $size (@sizes)
{
	sql("SELECT outbox_subscribe('$size', 'https://127.0.0.1:$port/$size', topics => '{$size}', timeout => '5 s', retry_schedule => '{0 s,1 h}')");
	sql("SELECT outbox_enqueue('$size', '1')");
}
wait_until($node, 'SELECT bool_and(delivered + waiting = 1) FROM outbox_subscriptions', 'each event is tried');
is(sql("SELECT string_agg(name || ': ' || last_error, ', ') FROM outbox_subscriptions WHERE delivered = 0"), '', 'and delivered');

done_testing();
