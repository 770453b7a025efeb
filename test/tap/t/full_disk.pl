# A dead endpoint has filled the disk with the log.  If this fails, the way out
# that the runbook shows gives up events and frees nothing, or nobody was warned.
#
# The database is in a tablespace of 64 MB, which needs a mount: the test runs
# in namespaces of its own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Test::More;

BEGIN
{
	if (!$ENV{FULL_DISK_VOLUME})
	{
		plan skip_all => 'this system does not let a user mount a volume'
		  if system('unshare -Urm unshare -U --map-user=1 true 2>/dev/null') != 0;
		$ENV{FULL_DISK_VOLUME} = "$ENV{TESTDATADIR}/full_disk_volume";
		mkdir $ENV{FULL_DISK_VOLUME};
		exec('unshare', '-Urm', 'sh', '-ec', 'mount -t tmpfs -o size=64m tmpfs "$FULL_DISK_VOLUME"; exec unshare -U --map-user="$0" -- "$@"',
			$>, $^X, (map { ('-I', $_) } @INC), $0) or die "unshare: $!";
	}
}

use Server;

my $node = new_server('full_disk', conf => "idempotency.sweep_interval = '50ms'\nautovacuum = off\nfsync = off");
$node->start;
sql("CREATE TABLESPACE small LOCATION '$ENV{FULL_DISK_VOLUME}'");
sql('CREATE DATABASE full_disk TABLESPACE small');
sql('CREATE EXTENSION idempotency', 'full_disk');
sql("SELECT outbox_subscribe('dead', 'http://127.0.0.1:9/', retry_schedule => '{0 s,10 h}')", 'full_disk');

sub check_log
{
	return sql(q(SELECT state, detail, hint FROM idempotency_status() WHERE "check" = 'log'), 'full_disk');
}

sub fails_to_enqueue
{
	my ($rows) = @_;
	my ($result, $out, $err) = $node->psql('full_disk',
		"\\set VERBOSITY sqlstate\nSELECT count(outbox_enqueue('t.a', jsonb_build_object('pad', repeat(md5(random()::text), 30)))) FROM generate_series(1, $rows)");
	return $err =~ /53100/;
}

like(check_log(), qr/^ok\|/, 'there is space');
fails_to_enqueue(4000);
sql('SELECT idempotency_internal.outbox_switch()', 'full_disk');
# A VACUUM of a large table does not count: it keeps no rows of other tables.
sql(<<'END', 'full_disk');
CREATE TABLE large (t text) TABLESPACE pg_default;
ALTER TABLE large ALTER t SET STORAGE PLAIN;
INSERT INTO large SELECT repeat('x', 5000) FROM generate_series(1, 1000);
END
my $vacuum = session($node, 'full_disk');
$vacuum->query_until(qr/vacuum/, <<'END');
SET vacuum_cost_delay = 100;
SET vacuum_cost_limit = 1;
\echo vacuum
VACUUM large;
END
my $old = session($node, 'full_disk');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $warned = 0;
until (fails_to_enqueue(4000))
{
	$warned = 1 if check_log() =~ /^warning\|.* of 64 MB are free/;
}
ok($warned, 'the check has warned before the disk was full');
1 until fails_to_enqueue(300);
1 until fails_to_enqueue(10);
my $unread = sql('SELECT lag_events FROM outbox_subscriptions', 'full_disk');
cmp_ok($unread, '>', 10000, 'the disk is full of events that are not read');
is(sql('SELECT lost FROM outbox_subscriptions', 'full_disk'), '0', 'and none is given up');
like(check_log(), qr/^warning\|\d+ MB; \d+ (?:bytes|kB) of 64 MB are free\|.*runbook/, 'the check says so');

$node->append_conf('postgresql.conf', "idempotency.outbox_keep_size = '20MB'");
wait_until($node, q(SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND xact_start < clock_timestamp() - interval '10 s'),
	'a session has an old snapshot, and VACUUM has one');
$node->reload;
$node->wait_for_log(qr/subscription "dead" is about to lose events/);
my $sweep = q(SELECT last_success_at FROM idempotency_internal.idempotency_workers() WHERE kind = 'sweeper');
for (1 .. 2)
{
	my $last = sql($sweep, 'full_disk');
	$node->poll_query_until('full_disk', "SELECT ($sweep) > '$last'") or die 'the sweeper does not work';
}
is(sql('SELECT lost FROM outbox_subscriptions', 'full_disk'), '0', 'nothing is given up while the snapshot keeps the space');
finish($old, 'COMMIT');
$node->poll_query_until('full_disk', 'SELECT sum(size) < 1000000 FROM idempotency_segments') or die 'no space is freed';
is(sql('SELECT count(pg_cancel_backend(pid)) FROM pg_stat_progress_vacuum'), '1', 'although VACUUM still runs');
$vacuum->quit;
ok(!fails_to_enqueue(1000), 'with outbox_keep_size, unread events are given up, and there is space');
cmp_ok(sql('SELECT lost FROM outbox_subscriptions', 'full_disk'), '>', 10000, 'the loss is counted');
is(sql(q(SET enable_seqscan = off; SELECT count(*) FROM outbox_log), 'full_disk'), '1000', 'the log is whole');
like(check_log(), qr/^ok\|/, 'the warning has ended');

done_testing();
