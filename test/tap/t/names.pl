# A name server that does not answer for some hosts costs one thread and a few
# descriptors for each of these hosts, and delays no other endpoint.  If this
# fails, customers whose names hang use up the relay's descriptors, and all
# deliveries become slow.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant {
	HANGING => $ENV{HANGING} // 60, EVENTS => 5, STEADY => 100, PAUSE_MS => 20,
	DELAY_MAX_MS => 500, OTHER_THREADS => 2, OTHER_DESCRIPTORS => 100,
};

my $dir = PostgreSQL::Test::Utils::tempdir;
my ($log, $hang, $later) = ("$dir/log", "$dir/hang", "$dir/later");
system_or_bail('cc', '-shared', '-fPIC', '-o', "$dir/names.so", "$FindBin::RealBin/../programs/names.c");
append_to_file($hang, '');

my $receiver = Receiver->start;
my $node = new_server('names');
{
	local $ENV{LD_PRELOAD} = "$dir/names.so";
	local $ENV{NAMES_LOG} = $log;
	local $ENV{NAMES_HANG} = $hang;
	local $ENV{NAMES_LATER} = $later;
	$node->start;
}
$node->safe_psql('postgres', 'CREATE EXTENSION idempotency');
my $relay = worker_pid($node, 'relay');
my ($port) = $receiver->url('/') =~ /:(\d+)/;

# How often each host was looked up, as "times" of hosts that match.
sub lookups
{
	my ($pattern) = @_;
	my %times;

	$times{$_}++ for grep { /$pattern/ } split(/\n/, -e $log ? slurp_file($log) : '');
	return %times;
}

sub entries
{
	my ($what) = @_;
	my @entries = glob("/proc/$relay/$what/*");
	return scalar(@entries);
}

sub subscribe_host
{
	my ($name, $host, $more) = @_;
	sql("SELECT outbox_subscribe('$name', 'http://$host.test:$port/ok/$name', topics => '{$name}' $more)");
	return;
}

# --- hosts that are found, or not

$receiver->new_secret('good');
subscribe_host('good', 'good', '');
enqueue_numbers($node, 'good', 1 .. 10);
$receiver->wait_for('good', events => 10);
is_deeply({ lookups('^good') }, { 'good.test' => 1 }, 'a host is looked up once for its requests');
subscribe_host('none', 'none', q(, retry_schedule => '{0 s}'));
enqueue_numbers($node, 'none', 1);
wait_until($node, q(SELECT last_error = 'Could not resolve host: none.test' FROM outbox_dead), 'one that does not exist is named');

# --- one that was found, and is looked up again in vain

subscribe_host('old', 'old', '');
enqueue_numbers($node, 'old', 1);
$receiver->wait_for('old', events => 1);
append_to_file($later, '');
enqueue_numbers($node, 'old', 2, 3);
$receiver->wait_for('old', events => 3);
wait_until($node, "SELECT pg_read_file('$log') ~ 'old.*old'", 'old addresses are used while a host is looked up again');
unlink($later);

# --- many that hang

my $before = entries('fd');
sql(qq(SELECT count(outbox_subscribe('hang-' || i, format('http://hang-%s.test:$port/ok/hang', i), topics => '{hang}',
	timeout => '200 ms', retry_schedule => '0 s'::interval || array_fill('10 ms'::interval, ARRAY[20]))) FROM generate_series(1, ${\HANGING}) i));
enqueue_numbers($node, 'hang', 1 .. EVENTS);
wait_until($node, qq(SELECT count(DISTINCT subscription) = ${\HANGING} FROM outbox_delivery WHERE topic = 'hang'
	AND last_error = 'timeout while looking up the host'), 'hosts hang');
enqueue_steadily($node, 'good', STEADY, PAUSE_MS);
$receiver->wait_for('good', events => STEADY);
my @delays = sort { $a <=> $b } $receiver->delays_ms('good');
my $p90 = $delays[ 0.9 * @delays ];
note("p50 $delays[ @delays / 2 ] ms, p90 $p90 ms, ", entries('task'), " threads, ", entries('fd'), " descriptors ($before before)");
cmp_ok($p90, '<', DELAY_MAX_MS, 'others are not delayed');
cmp_ok(entries('task'), '<=', HANGING + OTHER_THREADS, 'each costs a thread, however often it is tried');
cmp_ok(entries('fd'), '<=', $before + 3 * HANGING + OTHER_DESCRIPTORS, 'and a few descriptors');
my %times = lookups('^hang');
is(max(values %times), 1, 'since it is looked up once');

# --- the name server recovers

unlink($hang);
wait_until($node, q(SELECT count(*) = 0 FROM outbox_delivery WHERE topic = 'hang' AND state <> 'dead'), 'then all is delivered or dead');
wait_until($node, q(SELECT bool_and(state = 'active') FROM outbox_subscriptions), 'and the endpoints work');
cmp_ok(entries('task'), '<=', 1 + OTHER_THREADS, 'no thread is left');

done_testing();
