# An answer without end is ended after a limited number of bytes, whatever it
# consists of, and is a failure like others; a connection may live for long.  If
# this fails, one hostile endpoint fills a network and a processor.

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
use Tls;

# What is written to a connection includes what is in buffers of the kernel, which
# may have tens of megabytes.  If it is written slowly, there is less in them.
use constant { BYTES_MAX => 128 * 1024 * 1024, MS_MAX => 5000, SLOW_BYTES_MAX => 16 * 1024 * 1024 };

# On one connection, with eight kilobytes in each: more than one answer may have.
use constant ANSWERS => 50;

use constant { EVENTS => 100, PAUSE_MS => 20, DELAY_MS_MAX => 1000 };

my $too_long = qr/^\|the answer is longer than \d+ bytes$/;
my $headers_too_long = qr/^\|the headers of the answer are longer than \d+ bytes$/;

# The last status and error.  A body that is too long is not read to its end, but
# its status counts.
my %floods = (
	extension => $too_long,
	extensions => $too_long,
	trailers => $headers_too_long,
	body => qr/^500\|answered 500$/,
	headers => $headers_too_long,
	interim => $headers_too_long,
	tls_extension => $too_long);

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/server");

my $receiver = Receiver->start;
my $endpoints = Program->start([ 'node', "$FindBin::RealBin/../programs/floods.js", "$dir/server" ]);

$ENV{SSL_CERT_FILE} = "$dir/server.crt";
my $node = start_server('answer_bytes');

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

my $urls = told('ports');
my @names = sort keys %$urls;
my @slow = map { "slow_$_" } sort keys %floods;
is("@names", join(' ', sort keys %floods, @slow), 'each flood has its endpoints');

# The endpoints whose answers are written slowly are first used for long.
subscribe($node, $receiver, '/ok/healthy', topics => "'{healthy}'");
for my $name (@names)
{
	my $topics = $name =~ /^slow/ ? 'kept,slow' : 'fast';
	sql("SELECT outbox_subscribe('$name', '$urls->{$name}', topics => '{$topics}', timeout => '20 s', max_in_flight => 1,"
		  . " retry_schedule => '{0 s,1 h}')");
}

# Sends an event to all endpoints of a kind, and waits until the attempt has
# failed.
sub flood
{
	my ($speed, @flooding) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $names = join(',', map { "'$_'" } @flooding);

	sql("SELECT outbox_enqueue('$speed', '{}')");
	enqueue_steadily($node, 'healthy', EVENTS, PAUSE_MS) if $speed eq 'fast';
	wait_until($node, "SELECT count(*) = @{[ scalar @flooding ]} FROM outbox_deliveries WHERE subscription IN ($names) AND state = 'waiting'"
		  . " AND attempts = 1 AND next_attempt_at > last_at + interval '59 min'", "$speed floods are failures, and wait for a retry");
	my $report = ask('report');
	for my $name (@flooding)
	{
		my ($kind) = $name =~ /^(?:slow_)?(.*)/;
		my $error = sql("SELECT last_status, last_error FROM outbox_subscriptions WHERE name = '$name'");
		my %flood = %{ $report->{$name} };

		note("$name: $flood{bytes} bytes in $flood{ms} ms, $error");
		like($error, $floods{$kind}, "$name: it is told why");
		if ($speed eq 'fast')
		{
			cmp_ok($flood{bytes}, '<', BYTES_MAX, "$name: not much is received");
			cmp_ok($flood{ms}, '<', MS_MAX, "$name: in a short time");
		}
		else
		{
			is($flood{answered}, ANSWERS, "$name: the connection was used before");
			cmp_ok($flood{bytes}, '<', SLOW_BYTES_MAX, "$name: not much is received");
		}
	}
	return;
}

# --- connections that are used for long

sql("SELECT count(outbox_enqueue('kept', '{}')) FROM generate_series(1, @{[ ANSWERS ]})");
wait_until($node, "SELECT bool_and(delivered = @{[ ANSWERS ]}) FROM outbox_subscriptions WHERE name LIKE 'slow%'",
	'many answers are received');
my $report = ask('report');
is(join(' ', map { $report->{$_}{connections} } @slow), join(' ', map { 1 } @slow), 'over one connection each');
is(sql('SELECT count(*) FROM outbox_attempts'), '0', 'without a failed attempt');

# --- floods

ask('flood');
flood('slow', @slow);
flood('fast', sort keys %floods);
$receiver->wait_for('healthy', events => EVENTS);
my @delays = sort { $a <=> $b } $receiver->delays_ms('healthy');
cmp_ok($delays[ EVENTS / 2 ] // 'inf', '<', DELAY_MS_MAX, 'meanwhile others get their events');

# --- after the floods

ask('heal');
sql('SELECT outbox_retry(name) FROM outbox_subscriptions');
wait_until($node, "SELECT bool_and(waiting = 0 AND dead = 0) FROM outbox_subscriptions", 'every event is sent again, and delivered');

done_testing();
