# An endpoint that fails, works for a moment and fails again does not use up the
# schedules of its events; and it counts as failing when different events fail
# in a row, in whatever partition and at whatever attempt.  If this fails, events
# die within seconds although their schedule takes days, or an endpoint that is
# down is flooded with retries.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time usleep);

use constant { EVENTS => 3000, FLAPS => 12, FLAPPING_S => 60 };

# Each time it is used after a pause, receiver.js accepts so many events.
use constant CALM_REQUESTS => 3;

my $receiver = Receiver->start;
my $node = start_server('flapping');

# How often the endpoint of a subscription has begun to fail.
sub failures
{
	my ($name) = @_;
	my @lines = slurp_file($node->logfile) =~ /LOG:  the endpoint of subscription "$name" fails/g;
	return scalar(@lines);
}

sub wait_for_state
{
	my ($name, $condition, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT $condition FROM outbox_subscriptions WHERE name = '$name'", $what);
}

# --- endpoints that flap: by chance, and whenever they are used again

my %paths = (chance => '/some-15/chance', use => '/switch/use');
$receiver->switch('use', 'collapse');
subscribe($node, $receiver, $paths{$_}, topics => "'{flap}'", partitions => 32, retry_schedule => "'{0 s,5 min,5 min,5 min}'")
  for sort keys %paths;
sql("SELECT count(outbox_enqueue('flap', jsonb_build_object('n', n))) FROM generate_series(1, @{[ EVENTS ]}) n");
my $start = time();
my ($delivered, $dead) = (0, 0);
while ($delivered < FLAPS * CALM_REQUESTS && $dead == 0 && time() - $start < FLAPPING_S)
{
	usleep(200_000);
	($delivered, $dead) = split(/\|/, sql("SELECT delivered, dead FROM outbox_subscriptions WHERE name = 'use'"));
}
note(sprintf('%d delivered, %d dead after %.1f s', $delivered, $dead, time() - $start));
cmp_ok(failures('use'), '>=', FLAPS / 2, 'an endpoint fails and works again, many times');
for my $name (sort keys %paths)
{
	cmp_ok(sql("SELECT coalesce(max(attempts), 0) FROM outbox_deliveries WHERE subscription = '$name'"), '<=', 2,
		"$name: no event is tried by its schedule before its time");
	is(sql("SELECT dead FROM outbox_subscriptions WHERE name = '$name'"), '0', "$name: and none is dead");
}
sql("SELECT outbox_unsubscribe('chance')");
$receiver->switch('use', 'ok');
wait_for_state('use', 'waiting = 0 AND lag_events = 0', 'once it works, all events are sent at once');
is(sql("SELECT delivered, dead FROM outbox_subscriptions WHERE name = 'use'"), "@{[ EVENTS ]}|0", 'each of them');

# --- different events fail in a row, when they are retried

# At first others are accepted between them.
subscribe($node, $receiver, '/told/retries', topics => "'{retries}'", max_in_flight => 1, retry_schedule => "'{0 s,4 s,1 h}'");
sql("SELECT count(outbox_enqueue('retries', jsonb_build_object('n', n, 'fail', CASE n % 5 WHEN 0 THEN 0 ELSE 9 END)))"
	  . ' FROM generate_series(1, 40) n');
wait_for_state('retries', 'delivered = 8 AND waiting = 32', 'some of many events fail');
is(failures('retries'), 0, 'which does not make their endpoint fail');
wait_for_state('retries', "state = 'failing'", 'that nothing but failures follows does');

# --- different events fail in a row, in different partitions

subscribe($node, $receiver, '/fail/wide', topics => "'{wide}'", partitions => 32, retry_schedule => "'{0 s,1 h}'");
sql(q(SELECT count(outbox_enqueue('wide', '{}')) FROM generate_series(1, 200)));
wait_for_state('wide', "state = 'failing'", 'an endpoint fails in all of its partitions together');
cmp_ok(scalar($receiver->requests('wide')), '<=', 60, 'before most of its events were sent');

# --- a few events fail again and again

subscribe($node, $receiver, '/fail/few', topics => "'{few}'", partitions => 4,
	retry_schedule => "array_prepend('0 s', array_fill('10 ms'::interval, '{29}'))");
sql(q(SELECT count(outbox_enqueue('few', '{}')) FROM generate_series(1, 3)));
wait_for_state('few', 'dead = 3', 'three events are tried thirty times');
is(scalar($receiver->requests('few')), 90, 'each of them');
is(failures('few'), 0, 'which does not make their endpoint fail');

# --- an event that the endpoint has refused is not tried early

subscribe($node, $receiver, '/told/refused', topics => "'{refused}'", retry_schedule => "'{0 s,1 h,1 h}'");
for my $n (1, 2)
{
	sql(qq(SELECT outbox_enqueue('refused', '{"n": $n, "fail": 9, "status": 422}')));
	wait_for_state('refused', "waiting = $n", 'an event is refused');
}
sql(q(SELECT count(outbox_enqueue('refused', '{"n": 3, "fail": 1}')) FROM generate_series(1, 20)));
wait_for_state('refused', "state = 'failing'", 'then the endpoint fails');
wait_for_state('refused', "state = 'active' AND delivered = 20", 'it works again, and what failed then is delivered early');
wait_for_pass($node);
is(scalar(grep { $_->{data}{n} == 2 } $receiver->requests('refused')), 1, 'but what was refused is not tried');

# --- nor are events tried early again and again if the clock was set back

subscribe($node, $receiver, '/fail/ahead', topics => "'{ahead}'", retry_schedule => "'{0 s,1 s,1 h}'");
sql(q(UPDATE outbox_subscription SET recovered_at = clock_timestamp() + '1 h' WHERE name = 'ahead'; SELECT outbox_wake()));
sql(q(SELECT outbox_enqueue('ahead', '{}')));
$receiver->wait_for('ahead', requests => 2);
sql('SELECT pg_sleep(1)');
is(scalar($receiver->requests('ahead')), 2, 'it seems that the endpoint works again in an hour: no early attempt');

done_testing();
