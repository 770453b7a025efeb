# An endpoint that hangs, answers slowly, floods, lies or does not exist slows
# no other one, costs no memory and no event, and does not delay a shutdown.
# If this fails, one customer's broken server is an outage for all.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time usleep);
use Tls;

# An endpoint that hangs must be distinguished from a slow one on a busy
# machine.
use constant {
	TIMEOUT_S => 10,
	HEALTHY_EVENTS => 300,
	HEALTHY_FACTOR => 5,
	HEALTHY_FLOOR_S => 4,
	SHUTDOWN_S => 3,
};

# Too few for an endpoint to count as failing as a whole.
use constant FAULT_EVENTS => 3;

# What a flood may send before it is cut off, including everything in buffers.
use constant FLOOD_BYTES_MAX => 20 * 1024 * 1024;

# How much larger the relay may be afterwards.
use constant { RELAY_GROWTH_KB_MAX => 8 * 1024, RELAY_GROWTH_FILES_MAX => 8 };

$ENV{PGCTLTIMEOUT} = 15;

# What outbox_subscriptions shows for each: the last status and error.
my %faults = (
	hang => qr/^\|Timeout was reached/,
	drip => qr/^\|Timeout was reached/,
	flood => qr/^500\|answered 500/,
	interim => qr/^\|the headers of the answer are longer than 65536 bytes/,
	headers => qr/^\|the headers of the answer are longer than 65536 bytes/,
	header => qr/^\|.*(header|larger)/,
	reset => qr/^\|Failure when receiving data/,
	close => qr/^\|(Server returned nothing|Failure when receiving data)/,
	garbage => qr/^\|the answer is not HTTP/,
	redirect => qr/^302\|answered 302/,
	tls_hang => qr/^\|.*time/,
	tls_garbage => qr/^\|.*(SSL|TLS)/,
	tls_untrusted => qr/^\|.*certificate/,
	absent => qr/^\|.*connect/);

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/$_") for qw(trusted untrusted);

my $receiver = Receiver->start;
my $endpoints = Program->start([ 'node', "$FindBin::RealBin/../programs/faults.js",
	"$dir/trusted", "$dir/untrusted", PostgreSQL::Test::Cluster::get_free_port() ]);

$ENV{SSL_CERT_FILE} = "$dir/trusted.crt";
my $node = start_server('endpoints');

# What the endpoints' program prints after a word.
sub told
{
	my ($word) = @_;
	my $line = $endpoints->line($word);
	$line =~ s/^$word // or die "the endpoints do not say $word";
	return JSON::PP->new->allow_nonref->decode($line);
}

sub ask
{
	my ($word) = @_;
	$endpoints->say($word);
	return told($word);
}

sub enqueue
{
	my ($topic, $count) = @_;
	return sql("SELECT count(outbox_enqueue('$topic', '{}')) FROM generate_series(1, $count)");
}

# Seconds until the healthy endpoint has received so many more events.
my $healthy = 0;

sub deliver_healthy
{
	my $start = time();
	$healthy += HEALTHY_EVENTS;
	enqueue('healthy', HEALTHY_EVENTS);
	$receiver->wait_for('healthy', events => $healthy);
	return time() - $start;
}

# The relay's own memory, in kB, and the number of its descriptors.
sub relay_size
{
	my $pid = worker_pid($node, 'relay');
	my ($memory) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB$/m;
	my $files = () = glob("/proc/$pid/fd/*");
	return ($memory, $files);
}

# Waits until each endpoint that exists has received a connection.
sub wait_for_connections
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @silent;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $report = ask('report');
		@silent = grep { $_ ne 'absent' && $report->{$_}{connections} == 0 } sort keys %faults;
		last unless @silent;
		usleep(100_000);
	}
	is("@silent", '', 'every endpoint is tried');
	return;
}

sub wait_for_delivery
{
	my ($count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_until($node, 'SELECT bool_and(position = last_value AND waiting = 0 AND parked = 0)'
		  . ' FROM outbox_subscriptions, outbox_position_seq', 'all that is left is delivered');
	my $report = ask('report');
	is(join(' ', map { "$_ $report->{$_}{events}" } sort keys %faults),
		join(' ', map { "$_ $count" } sort keys %faults), 'and nothing is lost');
	is(sql('SELECT count(*) FROM outbox_dead'), '0', 'or dead before its time');
	return;
}

my $urls = told('ports');
is(join(' ', sort keys %$urls), join(' ', sort keys %faults), 'each fault has an endpoint');

# --- without faults

subscribe($node, $receiver, '/ok/healthy', topics => "'{healthy}'");
deliver_healthy();
my $alone = deliver_healthy();
my ($memory, $files) = relay_size();

# --- with all faults

sql("SELECT outbox_subscribe('$_', '$urls->{$_}', topics => '{faults}',"
	  . " retry_schedule => array_prepend('0 s', array_fill('2 s'::interval, '{60}')),"
	  . " timeout => '@{[ TIMEOUT_S ]} s')") for sort keys %faults;
enqueue('faults', FAULT_EVENTS);
wait_for_connections();
my $together = deliver_healthy();
my $limit = $alone * HEALTHY_FACTOR > HEALTHY_FLOOR_S ? $alone * HEALTHY_FACTOR : HEALTHY_FLOOR_S;
cmp_ok($together, '<', $limit, 'a healthy endpoint is as quick as before');

wait_until($node, "SELECT count(*) = @{[ scalar keys %faults ]} FROM outbox_subscriptions WHERE last_error IS NOT NULL", 'every fault is noticed');
for my $name (sort keys %faults)
{
	like(sql("SELECT last_status, last_error FROM outbox_subscriptions WHERE name = '$name'"),
		qr/$faults{$name}/s, "$name: what outbox_subscriptions says");
}
my $report = ask('report');
cmp_ok($report->{$_}{bytes}, '<', FLOOD_BYTES_MAX, "$_: cut off")
  for qw(flood interim headers header);

# --- after the faults

ask('heal');
wait_for_delivery(FAULT_EVENTS);
deliver_healthy();
my ($memory_after, $files_after) = relay_size();
cmp_ok($memory_after - $memory, '<', RELAY_GROWTH_KB_MAX, 'the relay has not grown');
cmp_ok($files_after - $files, '<=', RELAY_GROWTH_FILES_MAX, 'nor does it hold descriptors');

# --- a shutdown during all faults

ask('break');
enqueue('faults', FAULT_EVENTS);
wait_for_connections();
my $start = time();
ok($node->stop('fast', fail_ok => 1), 'the server stops');
cmp_ok(time() - $start, '<', SHUTDOWN_S, 'and at once');
$node->start;
ask('heal');
wait_for_delivery(2 * FAULT_EVENTS);

done_testing();
