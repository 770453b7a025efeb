# The log frees its space by itself, and a subscription that falls behind costs
# no more than configured.  If this fails, the log grows without limit, or
# events are lost that a subscription still had to get.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('log', conf => <<'EOF');
idempotency.sweep_interval = 20ms
idempotency.outbox_retention = 0
autovacuum = off
EOF

sub enqueue
{
	my ($topic, $from, $to) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n, 'pad', repeat('x', 500))))"
		  . " FROM generate_series($from, $to) n");
	return;
}

# --- churn

subscribe($node, $receiver, '/ok/churn', topics => "'{churn}'");
my $largest = 0;
for my $round (0 .. 19)
{
	enqueue('churn', 500 * $round + 1, 500 * $round + 500);
	$receiver->wait_for('churn', requests => 500 * $round + 300);
	my $size = sql('SELECT outbox_log_size()');
	$largest = $size if $size > $largest;
}
$receiver->wait_for('churn', requests => 10000);
is($receiver->distinct_numbers('churn'), join(' ', 1 .. 10000), 'all arrives while segments come and go');
cmp_ok(sql('SELECT max(segment) FROM outbox_ring'), '>', 5, 'which they do');
cmp_ok($largest, '<', 4 * 1024 * 1024, 'the log never takes much more than is on its way');
wait_until($node, 'SELECT count(*) = 0 FROM outbox_log', 'in the end it is empty');
is(sql("SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname LIKE 'outbox_log_%' OR relname = 'outbox_delivery'"),
	'0', 'it has left no dead rows');

# --- retention

alter_system('idempotency.outbox_retention', "'1h'");
enqueue('churn', 10001, 10010);
$receiver->wait_for('churn', requests => 10010);
wait_for_pass($node);
sql('SELECT outbox_expire()') for 1 .. 3;
is(sql('SELECT count(*) FROM outbox_log'), '10', 'what was delivered stays for the retention');
alter_system('idempotency.outbox_retention', 0);
wait_until($node, 'SELECT count(*) = 0 FROM outbox_log', 'and no longer');

# --- a subscription that sleeps

subscribe($node, $receiver, '/ok/sleepy', topics => "'{load}'");
subscribe($node, $receiver, '/ok/drowsy', topics => "'{load}'");
subscribe($node, $receiver, '/ok/awake', topics => "'{load}'");
sql("SELECT outbox_pause('sleepy', 'asleep'), outbox_pause('drowsy')");
enqueue('load', 1, 1000);
$receiver->wait_for('awake', requests => 1000);
sql('SELECT outbox_expire()') for 1 .. 3;
is(sql('SELECT count(*) FROM outbox_log'), '1000', 'what it has not read stays');
alter_system('idempotency.outbox_keep_size', "'2MB'");
for my $round (1 .. 9)
{
	enqueue('load', 1000 * $round + 1, 1000 * $round + 1000);
	$receiver->wait_for('awake', requests => 1000 * $round + 1000);
	$node->poll_query_until('postgres', 'SELECT outbox_log_size() < 3 * 1024 * 1024')
	  or fail('the log is kept within bounds');
}
ok($node->log_contains(qr/WARNING:  subscription "$_" is about to lose events\n.*DETAIL:  It is paused/),
	"$_: before anything is lost the log says so") for qw(sleepy drowsy);
ok($node->log_contains(qr/WARNING:  subscription "sleepy" loses events up to position \d+/), 'and when it is lost');
my ($lost, $position) = split(/\|/, sql("SELECT lost, position FROM outbox_subscriptions WHERE name = 'sleepy'"));
cmp_ok($lost, '>', 0, 'it has lost events');
my $kept = sql("SELECT string_agg(payload ->> 'n', ' ' ORDER BY (payload ->> 'n')::int) FROM outbox_log"
	  . " WHERE topic = 'load' AND position > $position");
sql("SELECT outbox_resume('sleepy')");
$receiver->wait_for('sleepy', events => scalar(split(/ /, $kept)));
is($receiver->distinct_numbers('sleepy'), $kept, 'but not those that were kept');
is($receiver->distinct_numbers('awake'), join(' ', 1 .. 10000), 'the other has lost nothing');
is(sql("SELECT lost FROM outbox_subscriptions WHERE name = 'awake'"), '0', 'nor does it say so');

done_testing();
