# What a process allocates for an event, a claim, an order or a reload it
# frees: after twice as many of them, the workers and a client's session are as
# large as before.  What a relay holds for an endpoint that hangs is limited.
# If this fails, a server runs out of memory after months, or a bad endpoint
# makes it do so sooner.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { ROUNDS => 20, EVENTS => 50 };

# Endpoints that hang, and the small events that wait for each of them.  The
# relay holds as many bytes of batches as of events, and what belongs to the
# subscriptions and their requests.
use constant { HUNG_ENDPOINTS => 2000, SMALL_EVENTS => 100 };
use constant HUNG_SMALL_GROWTH_KB_MAX => 128 * 1024;

# Partitions of an endpoint that hangs, and the events of 1 MB that wait for it.
use constant { HUNG_PARTITIONS => 64, HUNG_EVENTS => 600 };

# The relay holds 64 MiB of events, a copy of those in flight, and the memory
# for reading one.
use constant HUNG_GROWTH_KB_MAX => 160 * 1024;

# How much the memory in use may differ, since the catalog caches fill slowly:
# less than the smallest leak for each of the ROUNDS * EVENTS events.
use constant CONTEXT_GROWTH_MAX => 24 * 1024;

# libcurl does not use memory contexts, so only its pages can be measured.
use constant RELAY_GROWTH_KB_MAX => 512;

use constant INTERVALS => 5;

my $receiver = Receiver->start;
my $node = start_server('memory', conf => <<'EOF');
log_statement = none
idempotency.sweep_interval = 10ms
idempotency.outbox_retention = 0
idempotency.outbox_dead_retention = 0
idempotency.stock_compact_after = 5
idempotency.stock_history = 0
idempotency.stock_events = on
idempotency.stock_archive_topic = 'stock.archive'
EOF
my $client = session($node);

# --- the load

# A quarter of the events fails, and half of those become dead letters.
sub claim_order_and_announce
{
	my ($round) = @_;

	$client->query_safe(<<EOF);
SELECT count(idem_claim('short-' || n, request => 'same', ttl => '1 ms')),
	count(idem_claim('leased-$round-' || n, lease => '1 ms', ttl => '1 ms'))
FROM generate_series(1, @{[EVENTS]}) n;
BEGIN;
SELECT stock_receive('hat', 10), stock_adjust('hat', -2, 'count'),
	stock_reserve('hat', 1, 'paid-$round'), stock_confirm('paid-$round'),
	stock_reserve('hat', 3, 'cancelled-$round'), stock_cancel('cancelled-$round'),
	stock_reserve('hat', 2, 'unpaid-$round', ttl => '1 ms'),
	stock_reserve('hat', 1000000, 'short-$round');
SAVEPOINT a;
SELECT stock_reserve('hat', 1, 'taken back'), outbox_enqueue('memory.none', '{}');
ROLLBACK TO a;
COMMIT;
SELECT count(outbox_enqueue('memory.' || n % 2,
	jsonb_build_object('n', n, 'fail', CASE n % 8 WHEN 0 THEN 1 WHEN 1 THEN 9 ELSE 0 END),
	key => CASE WHEN n % 3 > 0 THEN 'key-' || n % 10 END, headers => '{"X-Number": "7"}'))
FROM generate_series(1, @{[EVENTS]}) n;
EOF
	return;
}

# Creates and ends a subscription, alters another, and changes and reloads a
# setting.
sub administer
{
	my ($round) = @_;

	sql("SELECT outbox_subscribe('guest', '" . $receiver->url('/ok/guest')
		  . "', topics => '{memory.0}', format => 'cloudevents', partitions => 2)");
	sql("SELECT outbox_pause('lasting', 'a round'); SELECT outbox_resume('lasting')");
	sql("ALTER SYSTEM SET idempotency.webhook_allowed_networks = '127.0.0.0/8, 10.0.0.$round'");
	$node->reload;
	return;
}

# Waits until no delivery of these events is left, dead letters included.
sub wait_for_rest
{
	$node->poll_query_until('postgres', <<'EOF') or die 'the workers do not get to an end';
SELECT (SELECT bool_and(position = last_value AND waiting = 0 AND parked = 0)
	FROM outbox_subscriptions, outbox_position_seq)
	AND NOT EXISTS (SELECT FROM outbox_delivery)
	AND NOT EXISTS (SELECT FROM outbox_log)
	AND NOT EXISTS (SELECT FROM idem_key)
	AND NOT EXISTS (SELECT FROM stock_hold)
EOF
	wait_for_pass($node);
	return;
}

sub do_rounds
{
	for my $round (1 .. ROUNDS)
	{
		administer($round);
		claim_order_and_announce($round);
		sql("SELECT outbox_unsubscribe('guest')");
	}
	wait_for_rest();
	return;
}

# --- measurements

# Bytes in use in the contexts of a process, which it writes to the log.
sub used_by_pid
{
	my ($pid) = @_;
	my $offset = -s $node->logfile;
	my $total = qr/\[$pid\] [^\n]*Grand total: [^\n]* (\d+) used/;

	sql("SELECT pg_log_backend_memory_contexts($pid)");
	$node->wait_for_log($total, $offset);
	return slurp_file($node->logfile, $offset) =~ $total ? $1 : die;
}

sub used_by_client
{
	return $client->query_safe('SELECT sum(used_bytes) FROM pg_backend_memory_contexts');
}

# The private memory of a process, as the kernel reports it.
sub resident_kb
{
	my ($pid) = @_;
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB$/m;

	return $kb;
}

sub measure
{
	my %pids = map { $_ => worker_pid($node, $_) } qw(launcher relay sweeper);

	return {
		pids => \%pids,
		relay_kb => resident_kb($pids{relay}),
		used => {
			client => used_by_client(),
			map { $_ => used_by_pid($pids{$_}) } keys %pids
		}
	};
}

sub growth_max
{
	my ($process) = @_;

	return $process eq 'libcurl' ? 1024 * RELAY_GROWTH_KB_MAX : CONTEXT_GROWTH_MAX;
}

subscribe($node, $receiver, '/told/lasting', topics => "'{memory.*,stock.*}'", retry_schedule => "'{0 s,1 ms}'");
used_by_client();
do_rounds();
my @measured = (measure());

# The growth between measurements, by process, and that of libcurl.  A leak
# grows each time, while catalog caches are filled or emptied only sometimes:
# the median counts.
my %growth;
for (1 .. INTERVALS)
{
	do_rounds();
	push @measured, measure();
	my ($before, $after) = @measured[ -2, -1 ];

	push @{ $growth{$_} }, $after->{used}{$_} - $before->{used}{$_} for keys %{ $before->{used} };
	push @{ $growth{libcurl} }, 1024 * ($after->{relay_kb} - $before->{relay_kb});
}
is_deeply($measured[-1]{pids}, $measured[0]{pids}, 'they are the same processes');
for my $process (sort keys %growth)
{
	my @growth = sort { $a <=> $b } @{ $growth{$process} };

	note("$process: @growth bytes more");
	cmp_ok($growth[$#growth / 2], '<', growth_max($process), "$process: no more memory in use than before");
}
cmp_ok(scalar($receiver->requests('lasting')), '>', 2 * ROUNDS * EVENTS, 'there was a lot to do');

# --- endpoints that accept connections but neither read nor answer

# Checks what the relay holds at most while requests hang.
sub check_growth
{
	my ($before_kb, $max_kb, $what) = @_;
	my $relay = worker_pid($node, 'relay');
	my $most_kb = 0;

	wait_until($node, q(SELECT bool_or(in_flight > 0) FROM outbox_subscriptions WHERE name LIKE 'hung%'), 'requests hang');
	for (1 .. 20)
	{
		wait_for_pass($node);
		my $kb = resident_kb($relay);
		$most_kb = $kb if $kb > $most_kb;
	}
	note("relay: $before_kb kB, then $most_kb kB");
	cmp_ok($most_kb - $before_kb, '<', $max_kb, $what);
	return;
}

my $silent = IO::Socket::INET->new(Listen => 4096, LocalAddr => '127.0.0.1') or die $!;
my $hung = "url => 'http://127.0.0.1:" . $silent->sockport . "/', topics => '{hung}', timeout => '1 h'";
my $before_kb = resident_kb(worker_pid($node, 'relay'));
sql("SELECT count(outbox_subscribe('hung' || i, $hung)) FROM generate_series(1, @{[HUNG_ENDPOINTS]}) i");
sql(join(';', ("SELECT outbox_enqueue('hung', '1', key => 'key')") x SMALL_EVENTS));
check_growth($before_kb, HUNG_SMALL_GROWTH_KB_MAX, 'what is held for many is bounded');
sql(q(SELECT count(outbox_unsubscribe(name)) FROM outbox_subscriptions WHERE name LIKE 'hung%'));
$node->restart;
wait_for_pass($node);

$before_kb = resident_kb(worker_pid($node, 'relay'));
sql("SELECT outbox_subscribe('hung', $hung, partitions => @{[HUNG_PARTITIONS]})");
sql("SELECT count(outbox_enqueue('hung', to_jsonb(repeat('x', 1000000)))) FROM generate_series(1, @{[HUNG_EVENTS]})");
check_growth($before_kb, HUNG_GROWTH_KB_MAX, 'what is held for it is bounded');
my $told = $receiver->requests('lasting');
sql(q(SELECT outbox_enqueue('memory.1', '{"n": 1}')));
ok($receiver->wait_for('lasting', requests => $told + 1), 'and others are served');

$client->quit;
done_testing();
