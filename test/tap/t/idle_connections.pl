# What happens on a connection between two requests neither keeps the relay busy
# nor delays the next one, and a descriptor that is used again is waited for
# again.  If this fails, a relay uses a whole processor for nothing, or a
# request is sent and its answer is never read.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;
use Time::HiRes qw(usleep);

# A processor that is busy all the time needs IDLE_S.
use constant { IDLE_S => 3, IDLE_CPU_S_MAX => 1 };

# So many requests at once use as many connections.
use constant REQUESTS => 8;

my $endpoints = Program->start([ 'node', "$FindBin::RealBin/../programs/idle.js" ]);
my ($closing) = $endpoints->line('port') =~ /(\d+)/;

my $node = start_server('idle_connections');

sub subscribe_to
{
	my ($name, $url) = @_;
	sql("SELECT outbox_subscribe('$name', '$url', topics => '{$name}', retry_schedule => '{0 s}', timeout => '5 s')");
	return;
}

# Announces events, and waits until all have had their only attempt.
sub announce
{
	my ($name, $count) = @_;
	my $done = sql("SELECT delivered + dead FROM outbox_subscriptions WHERE name = '$name'") + $count;
	sql("SELECT count(outbox_enqueue('$name', '{}')) FROM generate_series(1, $count)");
	wait_until($node, "SELECT delivered + dead = $done FROM outbox_subscriptions WHERE name = '$name'",
		"$name: attempts have ended");
	return;
}

sub dead
{
	my ($name) = @_;
	return sql("SELECT dead, last_error FROM outbox_subscriptions WHERE name = '$name'");
}

# Waits until the report of the endpoint has this; returns it.
sub wait_for_report
{
	my ($holds) = @_;
	my $report;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$endpoints->say('report');
		$report = JSON::PP->new->decode($endpoints->line('report') =~ s/^report //r);
		return $report if $holds->($report);
		usleep(100_000);
	}
	die JSON::PP->new->encode($report);
}

# Processor time that a process has used, in seconds.
sub cpu_s
{
	my ($pid) = @_;
	my @fields = split / /, slurp_file("/proc/$pid/stat") =~ s/.*\) //sr;

	return ($fields[11] + $fields[12]) / 100;
}

# --- connections that are closed while nothing is sent

subscribe_to('closing', "http://127.0.0.1:$closing/");
announce('closing', REQUESTS);
my $report = wait_for_report(sub { $_[0]{open} == 0 });
cmp_ok($report->{opened}, '>', 1, 'connections were open');
my $relay = worker_pid($node, 'relay');
my $before_s = cpu_s($relay);
sleep(IDLE_S);
cmp_ok(cpu_s($relay) - $before_s, '<', IDLE_CPU_S_MAX, 'the relay sleeps');
announce('closing', REQUESTS);
is(dead('closing'), '0|', 'and opens new connections for the next events');

# --- a descriptor that was that of another connection

subscribe_to('at_once', "http://127.0.0.1:$closing/at-once");
announce('at_once', 1) for 1 .. 3;
is(dead('at_once'), '0|', 'connections that are closed after the answer: each one works');

done_testing();
