# idempotency_status() reports problems, with a hint in a line that fits into a
# terminal, and returns to ok.  If this fails, the first place to look is
# silent, or raises false alarms.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant WIDTH => 150;	# of a row in psql

my $receiver = Receiver->start;
my $node = new_server('status', preload => 0, allows_streaming => 1,
	conf => "idempotency.stock_items = 16\nidempotency.stock_compact_after = 5\nidempotency.sweep_interval = 100ms\nmax_prepared_transactions = 5");
my %too_wide;

# The rows of a check, as state|detail|hint.
sub rows
{
	my ($check, $on, $db) = @_;
	my $all = ($on // $node)->safe_psql($db // 'postgres', 'SELECT "check", state, detail, hint FROM idempotency_status()');

	for (split /\n/, $all)
	{
		my @row = split /\|/, $_, -1;
		$too_wide{$_} = 1 if length() + 2 * $#row > WIDTH;
		$too_wide{"a warning without a hint: $_"} = 1 if $row[1] ne 'ok' && $row[3] eq '';
	}
	return join("\n", map { /^\Q$check\E\|(.*)/ ? $1 : () } split /\n/, $all);
}

# A test that passes as soon as a check reports this.
sub says
{
	my ($check, $pattern, $what, $on, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
	my $rows = rows($check, $on, $db);

	while ($rows !~ $pattern && time() < $until)
	{
		select(undef, undef, undef, 0.05);
		$rows = rows($check, $on, $db);
	}
	return like($rows, $pattern, $what);
}

sub is_ok
{
	my ($check, $what, @where) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return says($check, qr/\Aok\|[^\n]*\|\z/, $what, @where);
}

# --- the library

$node->start;
sql('CREATE EXTENSION idempotency; CREATE ROLE monitor; GRANT pg_monitor TO monitor');
says('library', qr/^error\|not preloaded.*\|add idempotency to shared_preload_libraries/, 'the library is not preloaded');
is(rows($_), '', "which leaves out what needs it: $_") for 'workers', 'log', 'stock counters';
is_ok($_, "but not what does not: $_") for qw(settings tables triggers keys);
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->restart;
wait_for_workers($node);
is_ok('library', 'it is preloaded');
is(sql(q(SELECT DISTINCT state FROM idempotency_status())), 'ok', 'a new database has nothing that is wrong');
is(sql(q(SET ROLE monitor; SELECT DISTINCT state FROM idempotency_status())), 'ok', 'monitors can ask');
sql(q(UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'idempotency'));
says('library', qr/^warning\|version [\d.]+, but the extension is 0\.9\|.*ALTER EXTENSION idempotency UPDATE/, 'another version');
sql(q(UPDATE pg_extension SET extversion = (SELECT default_version FROM pg_available_extensions WHERE name = 'idempotency') WHERE extname = 'idempotency'));
is_ok('library', 'the same version');

# --- workers

sql('CREATE DATABASE other');
alter_system('idempotency.databases', "'other'");
says('workers', qr/^warning\|idempotency\.databases leaves this database out.*\|add it to idempotency\.databases/, 'a database that is left out');
alter_system('idempotency.databases', 'DEFAULT');
is_ok('workers', 'one that is not');
sql(q(CREATE DATABASE template; ALTER DATABASE template IS_TEMPLATE true));
sql('CREATE EXTENSION idempotency', 'template');
says('workers', qr/^ok\|a template database has no workers\|/, 'a template', $node, 'template');
sql('ALTER DATABASE template IS_TEMPLATE false; DROP DATABASE template');
for (0, 2)
{
	alter_system('max_worker_processes', $_);
	$node->restart;
	says('workers', $_ ? qr/^error\|1 launcher, .*\|.*max_worker_processes/ : qr/^error\|0 launcher, 0 sweeper, 0 of 1 relays\|.*max_worker_processes/,
		"$_ slots are too few for workers");
	is(sql(q(SELECT state, detail FROM idempotency_internal.idempotency_worker_status(starting => '1 day') WHERE "check" = 'workers')),
		$_ ? 'warning|they are starting' : 'error|0 launcher, 0 sweeper, 0 of 1 relays', 'and were starting before');
	next if !$_;
	sql('CREATE EXTENSION idempotency; DROP EXTENSION idempotency', 'other');
	like(sql(q(SELECT clock_timestamp() AS dropped \gset
			CREATE EXTENSION idempotency;
			SELECT state, detail FROM idempotency_internal.idempotency_worker_status(starting => clock_timestamp() - :'dropped')), 'other'),
		qr/^warning\|they are starting/, 'and if the extension is created once more');
}
alter_system('max_worker_processes', 'DEFAULT');
$node->restart;
is_ok('workers', 'enough of them');

sql(q(ALTER FUNCTION idempotency_internal.stock_forget(integer) RENAME TO stock_forget_not));
says('worker errors', qr/^warning\|sweeper: \d+, the last \S+ ago: .*stock_forget.*\|see the server log/, 'the sweeper fails');
sql(q(ALTER FUNCTION idempotency_internal.stock_forget_not(integer) RENAME TO stock_forget));
is(sql("SELECT state, detail FROM idempotency_internal.idempotency_worker_status(recent => '1 us') WHERE \"check\" = 'worker errors'"),
	'ok|none in the last 00:00:00.000001', 'errors count for a while');
$node->restart;
is_ok('worker errors', 'it does no more');

my $backup = $node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
says('workers', qr/^ok\|a standby runs no workers\|/, 'a standby', $standby);
is_ok($_, "which answers all the same: $_", $standby) for 'library', 'tables', 'triggers', 'keys', 'log', 'stock counters', 'reservations';
$standby->stop;

# --- settings

alter_system('idempotency.stock_items', 17);
says('settings', qr/^warning\|idempotency\.stock_items was changed\|restart/, 'a setting that waits for a restart');
alter_system('idempotency.stock_items', 'DEFAULT');
is_ok('settings', 'it was taken back');
alter_system('idempotency.stock_archive_topic', "'archive'");
says('settings', qr/^warning\|idempotency\.stock_archive_topic is 'archive'.*\|subscribe an archive to it: outbox_subscribe/, 'an archive that nobody gets');
subscribe($node, $receiver, '/ok/archive', topics => "'{archive}'");
is_ok('settings', 'somebody gets it');
alter_system('idempotency.stock_archive_topic', 'DEFAULT');
alter_system('idempotency.databases', q('postgres, nowhere, "none, too"'));
says('settings', qr/^warning\|idempotency\.databases names .*nowhere.*\|correct it/, 'databases that are not there');
like(rows('settings'), qr/"none, too"/, 'by the names that they have');
alter_system('idempotency.databases', 'DEFAULT');
is_ok('settings', 'they are not named');

# --- tables and triggers

my $session = session($node);
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idem_key');
sql("SELECT idem_claim('k' || n) FROM generate_series(1, 5) n; SELECT idem_switch()");
wait_until($node, q(SELECT idem_migrate() IS NOT NULL AND EXISTS (SELECT FROM idem_ring WHERE state = 'old')), 'a segment is old');
sql(q(UPDATE idem_ring SET state = 'retired', closed_at = now() - interval '11 min', quiet_xid = pg_current_xact_id() WHERE state = 'old'));
says('tables', qr/^warning\|idem_key_\d could not be emptied.*00:11:\d\d.*\|end the old snapshot: pg_stat_activity/, 'a segment waits for an old snapshot');
finish($session, 'COMMIT');
is_ok('tables', 'the snapshot is gone');

sql('ALTER TABLE stock_log DISABLE TRIGGER stock_guard');
says('triggers', qr/^error\|disabled: .*\|.*idempotency_repair/, 'a trigger is disabled');
sql('SELECT idempotency_repair()');
is_ok('triggers', 'it is enabled');

my $last = sql("SELECT outbox_enqueue('t', '1')");
is_ok('sequences', 'events have numbers of the sequence');
sql("SELECT setval('outbox_position_seq', 1)");
says('sequences', qr/^error\|outbox_position_seq is behind .*\|.*idempotency_repair/, 'a restore has not ended') if $last > 1;
sql('SELECT idempotency_repair()');
is_ok('sequences', 'they are repaired');

# --- keys

sql(q(SELECT idem_claim('worker', lease => '1 min')));
is_ok('keys', 'a lease that goes on');
sql(q(UPDATE idem_key_0 SET lease_until = now() - interval '11 min' WHERE key = 'worker';
	UPDATE idem_key_1 SET lease_until = now() - interval '11 min' WHERE key = 'worker';
	UPDATE idem_key_2 SET lease_until = now() - interval '11 min' WHERE key = 'worker'));
says('keys', qr/^warning\|1 in progress, .*a lease ran out 00:11:\d\d ago\|its owner may have died/, 'a lease that ran out long ago');
sql(q(SELECT idem_complete('worker', token, '{}') FROM idem_key WHERE key = 'worker'));
is_ok('keys', 'the key is completed');

# --- subscriptions

# A test that passes as soon as a check reports nothing.
sub is_gone
{
	my ($check, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return says($check, qr/\A\z/, $what);
}

is_ok('subscriptions', 'a subscription that works');
subscribe($node, $receiver, '/switch/new', topics => "'{new}'");
$receiver->switch('new', 'fail');
enqueue_numbers($node, 'new', 1);
says('subscription new', qr/^warning\|nothing was delivered yet: 500\|see last_error in outbox_subscriptions$/, 'a new subscription fails');
$receiver->switch('new', 'ok');
sql(q(SELECT outbox_retry('new')));
is_gone('subscription new', 'it works');
$receiver->switch('new', 'fail');
enqueue_numbers($node, 'new', 2);
wait_until($node, q(SELECT waiting = 1 AND last_status = 500 FROM outbox_subscriptions WHERE name = 'new'), 'one of its events fails');
is_gone('subscription new', 'which is no reason for a warning');
$receiver->switch('fails', 'fail');
subscribe($node, $receiver, '/switch/fails', topics => "'{fails}'", retry_schedule => "'{0 s,1 h}'");
enqueue_numbers($node, 'fails', 1 .. 20);
says('subscription fails', qr/^warning\|failing for [\d:]+: 500\|.*outbox_retry\('fails'\)$/, 'an endpoint fails');
$receiver->switch('fails', 'ok');
sql(q(SELECT outbox_retry('fails')));
is_gone('subscription fails', 'it works');

sql(q(SELECT outbox_pause('fails', 'holidays')));
says('subscription fails', qr/^warning\|paused: holidays\|SELECT outbox_resume\('fails'\)$/, 'it is paused');
sql(q(SELECT outbox_resume('fails')));
is_gone('subscription fails', 'it goes on');

subscribe($node, $receiver, '/gone/gone', topics => "'{gone}'");
enqueue_numbers($node, 'gone', 1);
says('subscription gone', qr/^warning\|disabled(?:: .*)?\|SELECT outbox_resume\('gone'\)$/m, 'its endpoint is gone');
sql(q(SELECT outbox_unsubscribe('gone')));
is_gone('subscription gone', 'so is the subscription');

subscribe($node, $receiver, '/refuse/dead', topics => "'{dead}'", retry_schedule => "'{0 s}'");
enqueue_numbers($node, 'dead', 1 .. 3);
says('subscription dead', qr/^warning\|dead letters: 3\|see outbox_dead; SELECT outbox_redrive\('dead'\)$/m, 'dead letters');
sql(q(SELECT outbox_discard('dead')));
is_gone('subscription dead', 'they are discarded');

sql(q(UPDATE outbox_partition SET lost = 7 WHERE subscription = (SELECT id FROM outbox_subscription WHERE name = 'dead')));
says('subscription dead', qr/^error\|events lost: 7\|.*idempotency\.outbox_keep_size/, 'events were lost');
sql(q(SELECT outbox_acknowledge_lost('dead')));
is_gone('subscription dead', 'the loss is acknowledged');

subscribe($node, $receiver, '/hold/slow', topics => "'{slow}'", timeout => "'2 min'");
enqueue_numbers($node, 'slow', 1);
$receiver->wait_for('slow', requests => 1);
sql(join(';', map { "UPDATE outbox_log_$_ SET created_at = created_at - interval '6 min' WHERE topic = 'slow'" } 0 .. 2));
says('subscription slow', qr/^warning\|events behind: 1, for 00:06:\d\d\|/, 'a subscription is behind');
$receiver->release('slow');
is_gone('subscription slow', 'it has caught up');

my $slow = sql(q(SELECT id FROM outbox_subscription WHERE name = 'slow'));
sql("ALTER TABLE outbox_partition ADD CONSTRAINT bad CHECK (subscription <> $slow) NOT VALID");
enqueue_numbers($node, 'slow', 2);
says('subscription slow', qr/^error\|stuck: new row .*\|fix the cause; SELECT outbox_resume\('slow'\)$/, 'what cannot be written down');
sql('ALTER TABLE outbox_partition DROP CONSTRAINT bad');
sql(q(SELECT outbox_resume('slow')));
is_gone('subscription slow', 'it can');

sql('UPDATE outbox_home SET database = 1');
says('subscription slow', qr/^error\|held: a copy of another database.*\|see outbox_adopt\(\)$/, 'a copy of another database');
sql('SELECT outbox_adopt(keep_identity => true)');
is_gone('subscription slow', 'it is adopted');
is_ok('subscriptions', 'all are well');

# --- the log

alter_system('idempotency.outbox_keep_size', "'1MB'");
sql(q(SELECT outbox_pause('slow'); SELECT outbox_enqueue('slow', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 25000) n)))));
says('log', qr/^warning\|\d+ kB of 1024 kB, idempotency\.outbox_keep_size\|beyond the limit/, 'the log is above half of what is kept');
alter_system('idempotency.outbox_keep_size', 'DEFAULT');
is_ok('log', 'more is kept');
sql(q(SELECT outbox_resume('slow')));

$session = session($node);
$session->query_safe(q(BEGIN; SELECT outbox_enqueue('slow', '{}')));
says('open transactions', qr/^ok\|one with events has been open for 00:00:\d\d\|/, 'a transaction that has enqueued stays open');
is(sql(q(SELECT state, hint LIKE 'pid %; its events are sent when it commits' FROM idempotency_internal.outbox_status('-1 s')
	WHERE "check" = 'open transactions')), 'warning|t', 'for too long');
is(sql(q(SELECT string_agg(pg_get_function_identity_arguments(oid) || ' ' || pg_get_expr(proargdefaults, 0), '; ' ORDER BY proname)
	FROM pg_proc WHERE proname IN ('outbox_status', 'idempotency_worker_status'))) =~ s/, OUT[^']*/ /gr,
	q(recent interval, starting interval '00:10:00'::interval, '00:00:05'::interval; patience interval '00:10:00'::interval),
	'what is too long');
finish($session, 'COMMIT');
says('open transactions', qr/^ok\|none with events stays open\|/, 'it has ended');

# --- a relay that is busy for long: it is stopped while it evaluates a filter

my $busy = 'SELECT count(*) FROM outbox_turns() WHERE subscription IS NOT NULL';
my $relay = worker_pid($node, 'relay');
subscribe($node, $receiver, '/ok/busy', topics => q('{busy}'), filter => q('exists($.a[*] ? (exists($.a[*] ? (@ < 0))))'));
$session = session($node);
for my $try (1 .. 20)
{
	sql(q(SELECT outbox_enqueue('busy', jsonb_build_object('a', jsonb_agg(n))) FROM generate_series(1, 20000) n));
	for (1 .. 100)
	{
		last if $session->query_safe($busy) > 0;
		select(undef, undef, undef, 0.01);
	}
	kill 'STOP', $relay;
	last if $session->query_safe($busy) > 0;
	kill 'CONT', $relay;
}
is($session->query_safe($busy), '1', 'a relay is at a subscription');
is(rows('relay 1'), '', 'as it often is');
says('relay 1', qr/^error\|delivers nothing: busy for 00:00:1\d at subscription busy\|if it lasts: SELECT outbox_pause\('busy'\)/, 'but not for so long');
kill 'CONT', $relay;
says('relay 1', qr/\A\z/, 'it goes on');
wait_until($node, q(SELECT filter_errors > 0 AND lag_events = 0 FROM outbox_subscriptions WHERE name = 'busy'), 'and reaches the end of the log');
finish($session, 'SELECT 1');

# --- stock

$session = session($node);
$session->query_safe(q(BEGIN; SELECT stock_receive('item ' || n, 1) FROM generate_series(1, 9) n));
says('stock counters', qr/^warning\|\d+ of 16 counters in use, 9 by open transactions\|increase idempotency\.stock_items/, 'most counters are held');
finish($session, 'COMMIT');
is_ok('stock counters', 'they are not');

sql('ALTER FUNCTION idempotency_internal.stock_compact(integer) RENAME TO stock_compact_not');
sql(q(SELECT stock_receive('hat', 1) FROM generate_series(1, 60)));
says('stock log', qr/^warning\|items above 10 times idempotency\.stock_compact_after: 1\|does the sweeper run/, 'nothing is compacted');
sql('ALTER FUNCTION idempotency_internal.stock_compact_not(integer) RENAME TO stock_compact');
sql(q(SELECT stock_compact(1000), pg_reload_conf()));
is_ok('stock log', 'it is');

sql('ALTER FUNCTION idempotency_internal.stock_expire(integer) RENAME TO stock_expire_not');
sql(q(SELECT stock_reserve('hat', 1, 'late'); UPDATE stock_hold SET expires_at = now() - interval '2 min'));
says('reservations', qr/^warning\|1 should have expired more than 1 min ago\|does the sweeper run/, 'nothing expires');
sql('ALTER FUNCTION idempotency_internal.stock_expire_not(integer) RENAME TO stock_expire');
sql('SELECT stock_expire(), pg_reload_conf()');
is_ok('reservations', 'it does');

is(join("\n", sort keys %too_wide), '', 'no row is too wide, and every warning has a hint');

done_testing();
