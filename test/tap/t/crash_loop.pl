# A worker that cannot work is started again and again, with growing pauses, and
# disturbs no other database.  If this fails, one broken database fills the disk
# with log lines, or stops the deliveries of all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant SOON_S => 6;

my $receiver = Receiver->start;
my $node = start_server('crash_loop', conf => <<'EOF');
idempotency.sweep_interval = 20ms
log_line_prefix = '%n %b: '
EOF

# When a message was written to the log, in seconds.
sub times_of
{
	my ($message) = @_;
	return slurp_file($node->logfile) =~ /^([\d.]+) $message/mg;
}

# Waits for a number of these messages; tests that the pauses between them grow.
sub pauses_ok
{
	my ($message, @pauses) = @_;
	my $many = join('.*', (qr/^[\d.]+ $message/m) x (@pauses + 1));

	$node->wait_for_log(qr/$many/s);
	my @times = times_of($message);
	return !grep { $times[ $_ + 1 ] - $times[$_] < $pauses[$_] } 0 .. $#pauses;
}

sub pids
{
	return sql(q(SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity
		WHERE backend_type LIKE 'idempotency %' AND coalesce(datname, 'postgres') = 'postgres'));
}

sql('CREATE ROLE plain LOGIN; CREATE ROLE boss SUPERUSER');
for my $db (qw(broken barred))
{
	sql("CREATE DATABASE $db");
	sql('SET SESSION AUTHORIZATION boss; CREATE EXTENSION idempotency', $db);
	wait_for_workers($node, $db);
}
wait_for_workers($node);
my $others = pids();

# --- a table that is not what it should be

sql('ALTER TABLE outbox_subscription RENAME TO gone', 'broken');
ok(pauses_ok('idempotency relay: ERROR:  relation "idempotency_internal.outbox_subscription" does not exist', 1, 2),
	'a relay that dies again and again is started ever less often');
ok(pauses_ok('idempotency sweeper: ERROR:  relation "idempotency_internal.outbox_subscription" does not exist', 1, 2),
	'and what the sweeper cannot do is tried ever less often');
sql(q(SELECT idem_claim('k', ttl => '1 us')), 'broken');
ok($node->poll_query_until('broken', 'SELECT sum(keys) = 0 FROM idem_ring, idem_sample(slot, 10)'),
	'the sweeper does the rest');

# --- an owner without LOGIN

sql('REASSIGN OWNED BY boss TO plain', 'barred');
sql('ALTER ROLE plain NOLOGIN');
sql(q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'barred'));
if ($node->pg_version < 17)
{
	ok(pauses_ok('idempotency relay: FATAL:  role "plain" is not permitted to log in', 1, 2),
		'so it is with a worker that cannot even start');
}
else
{
	ok(wait_for_workers($node, 'barred'), 'which from 17 on keeps no worker from starting');
}

# --- the others

subscribe($node, $receiver, '/ok/shop');
enqueue_numbers($node, 't', 1 .. 3);
ok($receiver->wait_for('shop', events => 3), 'other databases are served all the while');
is(pids(), $others, 'by the same workers');
unlike(slurp_file($node->logfile), qr/was terminated by signal/, 'and no process has crashed');

# --- the causes are removed

sql('ALTER ROLE plain LOGIN');
sql('ALTER TABLE gone RENAME TO outbox_subscription', 'broken');
my $start = time();
$node->reload;
ok(wait_for_workers($node, $_), 'mended, and tried at once after a reload') for qw(barred broken);
cmp_ok(time() - $start, '<', SOON_S, 'whatever the pause had come to');
sql('ALTER TABLE stock_log RENAME TO gone', 'broken');
ok(pauses_ok('idempotency relay: ERROR:  relation "stock_log" of extension idempotency is missing', 1),
	'in a loop again');
is(error_code($node, 'broken', 'DROP EXTENSION idempotency'), '', 'the extension can be dropped meanwhile');
ok(wait_for_no_workers($node, 'broken'), 'which ends it');
$start = time();
sql('CREATE EXTENSION idempotency', 'broken');
wait_for_workers($node, 'broken');
cmp_ok(time() - $start, '<', SOON_S, 'and a new one is not made to wait for what was');

done_testing();
