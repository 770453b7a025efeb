# A receiver that refuses a large request without reading it, and breaks the
# connection, gets the events in smaller requests.  If this fails, events that
# it would accept use up their schedules, because they travel together.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use Program;
use Server;
use Test::More;

use constant { EVENTS => 1000, BYTES => 9000 };

my $endpoint = Program->start([ 'node', "$FindBin::RealBin/../programs/early.js" ]);
my ($port) = $endpoint->line('port') =~ /(\d+)/;
my $node = start_server('early_answers');
my @paths = qw(whole part late cut);

# A small request that is cut can be in the buffers of the kernel as a whole.
# Then it is not known that it was too large, and that is a failed attempt.
my %retries = (cut => ',1 s,1 s,1 s');

for my $path (@paths)
{
	sql("SELECT outbox_subscribe('$path', 'http://127.0.0.1:$port/$path', topics => '{$path}',"
		  . " format => 'cloudevents', batch => 1000, retry_schedule => '{0 s@{[ $retries{$path} // '' ]},1 h}')");
	sql("SELECT count(outbox_enqueue('$path', jsonb_build_object('x', repeat('x', @{[ BYTES ]}))))"
		  . " FROM generate_series(1, @{[ EVENTS ]})");
	wait_until($node, "SELECT delivered = @{[ EVENTS ]} AND waiting + dead = 0 AND in_flight = 0"
		  . " FROM outbox_subscriptions WHERE name = '$path'", "$path: all events are delivered");
}

# An event that is too large itself keeps no other one back.  If the connection
# breaks while the relay sends, libcurl does not read the answer any more.
for my $path (qw(whole part late))
{
	sql("SELECT count(outbox_enqueue('$path', jsonb_build_object('x', repeat('x', n)))) FROM unnest('{10,2000000,10}'::int[]) n");
	wait_until($node, "SELECT delivered = @{[ EVENTS + 2 ]} AND waiting = 1"
		  . " AND (last_status = 413 OR last_error = 'Failed sending data to the peer')"
		  . " FROM outbox_subscriptions WHERE name = '$path'", "$path: an event that is too large is alone");
}

$endpoint->say('report');
my $report = decode_json($endpoint->line('report') =~ s/^report //r);
cmp_ok($report->{$_}{refused}, '>', 10, "$_: large requests were refused") for @paths;
cmp_ok($report->{$_}{accepted}, '<', EVENTS / 2, "$_: and not every event had to travel alone") for @paths;

done_testing();
