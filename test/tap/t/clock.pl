# The clock of the server is set back, or forward.  If this fails, no event is
# sent until the clock shows again what it has shown before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { HOUR_S => 3600, DAY_S => 86400, EVENTS => 3, WAIT_S => 15 };

my $dir = PostgreSQL::Test::Utils::tempdir;
my $receiver = Receiver->start;
my $node = new_server('clock');
my ($number, $sent) = (0, 0);

sub set_clock
{
	my ($offset_s) = @_;

	append_to_file("$dir/new", $offset_s);
	rename("$dir/new", "$dir/offset") or die "rename: $!";
	return;
}

sub events_are_sent
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time();

	for (1 .. EVENTS)
	{
		enqueue_numbers($node, 'shop', ++$number);
		$receiver->wait_for('shop', events => ++$sent, WAIT_S) or last;
	}
	cmp_ok(time() - $start, '<', WAIT_S, "$when: events are sent at once");
	return;
}

set_clock(0);
system_or_bail('cc', '-shared', '-fPIC', '-o', "$dir/clock.so", "$FindBin::RealBin/../programs/clock.c");
{
	local $ENV{LD_PRELOAD} = "$dir/clock.so";
	local $ENV{CLOCK_OFFSET} = "$dir/offset";
	$node->start;
}
sql('CREATE EXTENSION idempotency');
subscribe($node, $receiver, '/ok/shop', topics => q('{shop}'));
events_are_sent('before');

# While a transaction is open.
my $late = session($node);
$late->query_safe(q(BEGIN; SELECT outbox_enqueue('shop', '{"n": 100}')));
set_clock(-DAY_S());
is(sql(q(SELECT clock_timestamp() < pg_postmaster_start_time())), 't', 'the clock is set back');
events_are_sent('a day back');
set_clock(-DAY_S() - HOUR_S());
events_are_sent('another hour back');
$late->query_safe('COMMIT');
$receiver->wait_for('shop', events => ++$sent);
set_clock(0);
events_are_sent('forward again');
is($receiver->distinct_numbers('shop'), join(' ', 1 .. $number, 100), 'each event arrives');

$late->quit;
done_testing();
