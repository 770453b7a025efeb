# An answer settles the request that it belongs to, and no other one, whatever
# an endpoint, or what stands before it, does with connections and versions of
# HTTP.  If this fails, an event that was refused counts as delivered, and is
# lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;
use Tls;

# In two subscriptions to each endpoint.
use constant EVENTS => 200;

# One at a time, to the endpoint that answers unasked.
use constant UNASKED => 5;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/server");
my $endpoints = Program->start([ 'node', "$FindBin::RealBin/../programs/own_answers.js", "$dir/server" ]);
my $urls = JSON::PP->new->decode($endpoints->line('ports') =~ s/^ports //r);

$ENV{SSL_CERT_FILE} = "$dir/server.crt";
my $node = start_server('own_answers');

for my $name (grep { !/unasked/ } sort keys %$urls)
{
	for my $half (0, 1)
	{
		sql("SELECT outbox_subscribe('$name$half', '$urls->{$name}', topics => '{$name$half}', ordered => false,"
			  . " retry_schedule => '{0 s,0 s,0 s,0 s,1 h}', max_in_flight => 32, keep_deliveries => '1 h')");
	}
	sql("SELECT count(outbox_enqueue('$name' || i % 2, jsonb_build_object('n', i / 2))) FROM generate_series(2, 2 * @{[ EVENTS ]} + 1) i");
}

# An attempt that fails with its connection is made again.
for my $name (grep { !/unasked/ } sort keys %$urls)
{
	my $subscriptions = "subscription IN ('${name}0', '${name}1')";
	my $number = q((l.payload->>'n')::integer);

	wait_until($node, "SELECT sum(delivered) = @{[ EVENTS ]} AND sum(waiting) = @{[ EVENTS ]}"
		  . " FROM outbox_subscriptions WHERE name IN ('${name}0', '${name}1')", "$name: what is accepted is delivered");
	is(sql("SELECT count(*) FROM outbox_history h JOIN outbox_log l USING (position) WHERE h.$subscriptions"
			  . " AND h.error IS NULL AND $number % 2 = 0"), 0, "$name: nothing that was refused counts as delivered");
	is(sql("SELECT count(*) FROM outbox_attempts a JOIN outbox_log l USING (position) WHERE a.$subscriptions"
			  . " AND a.status IS NOT NULL AND (a.status, a.answer) IS DISTINCT FROM (422, $number\::text)"), 0,
		"$name: each refusal has its own answer");
}

# --- an answer that comes while no request is out

for my $name (qw(unasked tls_unasked))
{
	sql("SELECT outbox_subscribe('$name', '$urls->{$name}', topics => '{$name}', retry_schedule => '{0 s,1 h}', max_in_flight => 1)");
	for my $i (1 .. UNASKED)
	{
		sql("SELECT outbox_enqueue('$name', '{\"n\": 2}')");
		wait_until($node, "SELECT waiting + delivered = $i FROM outbox_subscriptions WHERE name = '$name'", "$name: an attempt");
		$endpoints->line('unasked');
	}
	is(sql("SELECT delivered, last_error FROM outbox_subscriptions WHERE name = '$name'"), '0|answered 422', "$name: none takes that for its answer");
}

done_testing();
