# The server stops at once, whatever our workers are waiting for.  If this
# fails, a restart for a security update takes as long as the slowest webhook.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant SOON_S => 1;

$ENV{PGCTLTIMEOUT} = 10;		# rather than let the test hang

my $receiver = Receiver->start;
my $node = start_server('shutdown', allows_streaming => 1, conf => 'max_prepared_transactions = 2');

sub stop_quickly
{
	my ($what, $mode) = @_;
	$mode //= 'fast';
	my $start = time();

	my $stopped = $node->stop($mode, fail_ok => 1);
	my $seconds = time() - $start;

	cmp_ok($seconds, '<', SOON_S, "$mode shutdown $what");
	$node->stop('immediate') unless $stopped;
	$node->start;
	wait_for_workers($node);
	return;
}

sub wait_for_relay
{
	my ($condition) = @_;
	return $node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idempotency relay' AND $condition");
}

subscribe($node, $receiver, '/hang/hanging', timeout => "'1 h'");
sql(q(SELECT count(outbox_enqueue('t', '{}')) FROM generate_series(1, 20)));
$receiver->wait_for('hanging', requests => 8);
stop_quickly('with requests out');

$receiver->wait_for('hanging', requests => 16);
stop_quickly('after a restart, with the same requests out again');
$receiver->wait_for('hanging', requests => 24);
stop_quickly('with requests out', 'immediate');
sql("SELECT outbox_unsubscribe('hanging')");

# Names are resolved in a thread of libcurl.
sql(q(SELECT outbox_subscribe('dns', 'http://no-such-host.invalid/')));
sql(q(SELECT outbox_enqueue('t', '{}')));
stop_quickly('while a name is resolved');
sql("SELECT outbox_unsubscribe('dns')");

subscribe($node, $receiver, '/fail/locked');
sql("BEGIN; SELECT outbox_unsubscribe('locked'); PREPARE TRANSACTION 'p'");
sql(q(SELECT outbox_enqueue('t', '{}')));
$receiver->wait_for('locked', requests => 1);
stop_quickly('while a prepared transaction has locked a subscription');
sql("COMMIT PREPARED 'p'");

subscribe($node, $receiver, '/ok/waits');
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
$node->poll_query_until('postgres', "SELECT setting = 'nobody' FROM pg_settings WHERE name = 'synchronous_standby_names'");
sql(q(SET synchronous_commit = local; SELECT outbox_enqueue('t', '{"n": 1}')));
wait_for_pass($node);
is(scalar($receiver->requests('waits')), 0, 'what no standby has is not sent, but passes go on');
stop_quickly('with a synchronous standby that does not answer');

$node->stop('immediate');
done_testing();
