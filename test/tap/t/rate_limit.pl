# A subscription with a rate_limit gets no more events a second, retries
# included, and the others are not affected.  If this fails, an endpoint is
# flooded, or a limit delays what it is not meant for.
#
# In any time T, at most one second's worth of events and T times the rate may
# be sent.  The times of arrival can be a little nearer together: hence SLACK_S.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use List::Util qw(max);
use POSIX ();
use Receiver qw(events);
use Server;
use Test::More;

use constant { RATE => 20, EVENTS => 80, SLACK_S => 0.5, SLOW_S => 15 };
# More than SHARED_FLIGHTS_MAX.
use constant CROWD => 80;
use constant { ROUNDS => 3, STEPS => 100, PAUSE_MS => 20, DELAY_MS_MAX => 1000 };

my $receiver = Receiver->start;
my $node = start_server('rate_limit');

# The times of arrival, in seconds, in order.
sub arrivals
{
	my ($name) = @_;
	my @sorted = sort { $a <=> $b } map { $_->{at} / 1000 } $receiver->requests($name, 'at');
	return @sorted;
}

sub span
{
	my @times = @_;
	return $times[-1] - $times[0];
}

sub enqueue
{
	my ($topic, $count) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n))) FROM generate_series(1, $count) n");
	return;
}

# Requests beyond a burst of one second's worth take this time.
sub least_s
{
	my ($count, $rate) = @_;
	return ($count - $rate) / $rate - SLACK_S;
}

sub shows
{
	my ($name, $limited, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT rate_limited = $limited FROM outbox_subscriptions WHERE name = '$name'", $what);
}

# --- the rate, and the burst

subscribe($node, $receiver, '/ok/burst', topics => "'{burst}'", rate_limit => RATE);
subscribe($node, $receiver, '/ok/slow', topics => "'{slow}'", rate_limit => RATE);
shows('slow', 'false', 'nothing waits');
enqueue('slow', EVENTS);
shows('slow', 'true', 'events wait for the limit');
$receiver->wait_for('slow', events => EVENTS);
my @times = arrivals('slow');
cmp_ok(span(@times), '>', least_s(EVENTS, RATE), 'the rate is held');
cmp_ok(span(@times), '<', SLOW_S, 'and used');
cmp_ok(max(map { $times[ $_ + RATE / 2 ] - $times[$_] } 0 .. $#times - RATE / 2), '<', 2,
	'events are sent evenly');
shows('slow', 'false', 'nothing waits any more');
wait_until($node, "SELECT delivered = @{[ EVENTS ]} FROM outbox_subscriptions WHERE name = 'slow'", 'all is delivered');
is(scalar(@times), EVENTS, 'each event is sent once');

# The other subscription has had time for several seconds' worth.  A busy machine
# may delay the burst, so it is tried again.
my $burst;
for my $round (1 .. ROUNDS)
{
	my $before = arrivals('burst');
	enqueue('burst', EVENTS);
	$receiver->wait_for('burst', events => $before + EVENTS);
	@times = arrivals('burst');
	splice(@times, 0, $before);
	cmp_ok(span(@times), '>', least_s(EVENTS, RATE), 'after a pause, one second\'s worth is sent at once, and not more');
	$burst = span(@times[ 0 .. RATE - 2 ]);
	last if $burst < 0.5;
	sql('SELECT pg_sleep(2)');
}
cmp_ok($burst, '<', 0.5, 'and not less');

# --- several events in a request

subscribe($node, $receiver, '/ok/batched', topics => "'{batched}'", rate_limit => RATE, format => "'cloudevents'",
	batch => EVENTS);
enqueue('batched', 1);
$receiver->wait_for('batched', events => 1);
sql('SELECT pg_sleep(1.5)');
enqueue('batched', EVENTS);
$receiver->wait_for('batched', events => EVENTS + 1);
my (undef, @batched) = $receiver->requests('batched');
cmp_ok(max(map { scalar(events($_)) } @batched), '<=', RATE, 'a request has no more events than may be sent at once');
cmp_ok(scalar(@batched), '<', EVENTS, 'but several');
cmp_ok(($batched[-1]{at} - $batched[0]{at}) / 1000, '>', least_s(EVENTS, RATE), 'each of them counts');

# --- a rate that is high for a timer

subscribe($node, $receiver, '/ok/fast', topics => "'{fast}'", rate_limit => 300);
my $relay = worker_pid($node, 'relay');

sub cpu_s
{
	open my $stat, '<', "/proc/$relay/stat" or die "$relay: $!";
	my ($fields) = <$stat> =~ /.*\) (.*)/;
	my ($user, $system) = (split(/ /, $fields))[ 11, 12 ];
	return ($user + $system) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}
my $cpu = cpu_s();
enqueue('fast', 1200);
$receiver->wait_for('fast', events => 1200);
$cpu = cpu_s() - $cpu;
my $span = span(arrivals('fast'));
cmp_ok($span, '>', least_s(1200, 300), 'a higher rate is held');
cmp_ok($span, '<', SLOW_S, 'and used');
note("$span s, of these $cpu s of CPU time");

# --- a low rate, and changes

subscribe($node, $receiver, '/ok/altered', topics => "'{altered}'", rate_limit => 0.001);
enqueue('altered', 100);
$receiver->wait_for('altered', requests => 1);
shows('altered', 'true', 'the first event is sent, others wait');
$cpu = cpu_s();
sql('SELECT pg_sleep(2)');
cmp_ok(cpu_s() - $cpu, '<', 0.5, 'while it waits, the relay sleeps');
is(scalar(arrivals('altered')), 1, 'they wait');
sql("SELECT outbox_alter('altered', rate_limit => 100000)");
$receiver->wait_for('altered', events => 100, SLOW_S);
shows('altered', 'false', 'a higher limit holds at once');
sql("SELECT outbox_alter('altered', rate_limit => 0.001)");
enqueue('altered', 100);
shows('altered', 'true', 'and a lower one');
wait_for_pass($node);
cmp_ok(scalar(arrivals('altered')), '<=', 101, 'with no more than one event at once');
sql("SELECT outbox_alter('altered', timeout => '10 s')");
wait_for_pass($node);
cmp_ok(scalar(arrivals('altered')), '<=', 101, 'another change leaves it');
sql("SELECT outbox_alter('altered', rate_limit => 'infinity')");
$receiver->wait_for('altered', events => 200, SLOW_S);
shows('altered', 'false', 'infinity ends it');
sql("UPDATE outbox_subscription SET rate_limit = 0.001 WHERE name = 'altered'");
wait_for_pass($node);
enqueue('altered', 10);
shows('altered', 'true', 'an UPDATE of the table is seen, too');
sql("SELECT outbox_unsubscribe('altered')");

# --- retries

subscribe($node, $receiver, '/refuse/retried', topics => "'{retried}'", rate_limit => RATE,
	retry_schedule => "array_fill('0 s'::interval, '{10}')");
enqueue('retried', EVENTS / 10);
wait_until($node, "SELECT dead = @{[ EVENTS / 10 ]} FROM outbox_subscriptions WHERE name = 'retried'", 'all attempts are made');
is(scalar(arrivals('retried')), EVENTS, 'each of them once');
cmp_ok(span(arrivals('retried')), '>', least_s(EVENTS, RATE), 'retries are limited, too');

# --- an endpoint that fails

$receiver->switch('fails', 'fail');
subscribe($node, $receiver, '/switch/fails', topics => "'{fails}'", rate_limit => 100, retry_schedule => "'{0 s,1 h}'");
enqueue('fails', 100);
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'fails'", 'the endpoint is failing');
$receiver->switch('fails', 'ok');
wait_until($node, "SELECT lag_events = 0 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'fails'",
	'its probes and early attempts are sent');
is(scalar(grep { $_->{status} == 200 } $receiver->requests('fails', 'status')), 100, 'each event is delivered once');

# --- others are not delayed

subscribe($node, $receiver, '/ok/backlog', topics => "'{all}'", rate_limit => 1, max_in_flight => 256);
subscribe($node, $receiver, '/ok/beside', topics => "'{all}'");
enqueue('all', 5000);
$receiver->wait_for('beside', events => 5000);
my $delay;
for my $round (1 .. ROUNDS)
{
	enqueue_steadily($node, 'all', STEPS, PAUSE_MS);
	$receiver->wait_for('beside', events => 5000 + $round * STEPS);
	my @delays = $receiver->delays_ms('beside');
	@delays = sort { $a <=> $b } @delays[ -STEPS .. -1 ];
	$delay = $delays[ 0.99 * STEPS - 1 ];
	note("p50 $delays[ STEPS / 2 - 1 ] ms, p99 $delay ms");
	last if $delay < DELAY_MS_MAX;
}
cmp_ok($delay, '<', DELAY_MS_MAX, 'a backlog of a limited subscription delays no other');
shows('backlog', 'true', 'while it waits');
sql("SELECT outbox_unsubscribe('backlog')");

# --- more endpoints are busy than can be shown

sql("SELECT count(outbox_subscribe('hangs ' || n, '" . $receiver->url('/hang/hangs') . "', topics => '{crowd}', timeout => '30 min')) FROM generate_series(1, @{[ CROWD ]}) n");
subscribe($node, $receiver, '/ok/crowded', topics => "'{crowd}'", rate_limit => 0.001);
sql("SELECT count(outbox_subscribe('more ' || n, '" . $receiver->url('/hang/more') . "', topics => '{crowd}', timeout => '30 min')) FROM generate_series(1, @{[ CROWD ]}) n");
enqueue('crowd', 2);
$receiver->wait_for('hangs', requests => CROWD);
$receiver->wait_for('more', requests => CROWD);
shows('crowded', 'true', 'one that waits for its limit is shown among many');
cmp_ok(sql('SELECT count(*) FROM outbox_subscriptions WHERE in_flight > 0'), '>', 0, 'and some of the others');
sql("SELECT outbox_unsubscribe(name) FROM outbox_subscriptions WHERE name ~ '^(hangs|more) ' OR name = 'crowded'");

# --- a relay that dies sends little again

subscribe($node, $receiver, '/ok/dies', topics => "'{dies}'", rate_limit => RATE);
enqueue('dies', 4 * EVENTS);
$receiver->wait_for('dies', requests => EVENTS);
terminate_worker($node, 'relay');
$receiver->wait_for('dies', requests => 2 * EVENTS + RATE);
my %seen;
my $again = grep { $seen{ $_->{id} }++ } $receiver->requests('dies', 'id');
cmp_ok($again, '<=', 3 * RATE, 'only what was read in the last seconds');
sql("SELECT outbox_unsubscribe('dies')");

# --- several relays

alter_system('idempotency.relays', 2);
sql('SELECT outbox_unsubscribe(name) FROM outbox_subscriptions');
subscribe($node, $receiver, '/ok/wide', topics => "'{wide}'", partitions => 4, rate_limit => RATE);
wait_until($node, relay_shares() . " = '2 4'", 'two relays share its partitions');
enqueue('wide', EVENTS);
$receiver->wait_for('wide', events => EVENTS);
cmp_ok(span(arrivals('wide')), '>', least_s(EVENTS, RATE), 'together they hold the rate');
cmp_ok(span(arrivals('wide')), '<', SLOW_S, 'and use it');
alter_system('idempotency.relays', 1);
wait_until($node, relay_shares() . " = '1 4'", 'one relay serves all');
my $before = arrivals('wide');
enqueue('wide', EVENTS);
$receiver->wait_for('wide', events => $before + EVENTS);
@times = arrivals('wide');
splice(@times, 0, $before);
cmp_ok(span(@times), '>', least_s(EVENTS, RATE), 'it holds the rate');
cmp_ok(span(@times), '<', SLOW_S, 'and uses it');
ok(!$node->log_contains(qr/stuck/), 'no subscription was stuck');

$receiver->stop;
done_testing();
