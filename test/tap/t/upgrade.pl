# The new library works with the SQL objects of the version before, ALTER
# EXTENSION UPDATE goes through while clients and workers are at it, and leaves
# what a fresh install has, with all data.  If this fails, an upgrade of the
# package stops a shop, or leaves a database that is neither old nor new.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Catalog;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant OLD => '0.2.0';
use constant HINT => "The part in src/upgrade/ lacks what the install script has, or has more:";

# The old script as it was released.  Others share the directory: the file must
# be whole as soon as it is there.
my ($released) = glob("$FindBin::RealBin/../../upgrade/idempotency--" . OLD . '.sql');
chomp(my $extensions = `pg_config --sharedir`);
$extensions .= '/extension';
copy($released, "$extensions/released.$$") && rename("$extensions/released.$$", "$extensions/idempotency--" . OLD . '.sql')
  or die "could not install $released: $!";
END { unlink("$extensions/idempotency--" . OLD . '.sql') if defined $extensions }

my $receiver = Receiver->start;
my $node = new_server('upgrade', conf => "idempotency.stock_compact_after = 20\nidempotency.sweep_interval = 50ms");

# What must be the same before and after, of all that was there.
sub fingerprint
{
	my ($db) = @_;
	my %part_of = (
		idem_key => "SELECT key, scope, token, expires_at, attempt, state, lease_until, request, response FROM idem_key WHERE scope = 'kept'",
		outbox_subscription => 'SELECT * FROM outbox_subscription',
		outbox_delivery => "SELECT * FROM outbox_delivery WHERE topic = 'dead'",
		outbox_attempt => 'SELECT * FROM outbox_attempt',
		outbox_home => 'SELECT identity, system_identifier, created_at FROM outbox_home',
		outbox_log => "SELECT * FROM outbox_log WHERE topic = 'dead'",
		stock_hold => "SELECT quantity, expires_at, line, reservation, sku FROM stock_hold WHERE sku = 'kept'",
		stock_levels => "SELECT * FROM stock_levels WHERE sku = 'kept'",
		stock_history => "SELECT id, quantity, at, change, line, sku, reservation, actor, note FROM stock_history WHERE sku = 'kept'");
	return join("\n", map { "$_: "
			  . $node->safe_psql($db, "SELECT count(*) || ' ' || md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM ($part_of{$_}) t") }
		  sort keys %part_of);
}

# All that an application and the workers do, once.
my $round = 0;
sub everything_works
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $n = ++$round;

	is(sql(qq(
		SET ROLE shop_app;
		SELECT outcome FROM idem_claim('t$n');
		SELECT outcome FROM idem_claim('t$n');
		SELECT token AS t FROM idem_claim('l$n', lease => '1 min') \\gset
		SELECT idem_renew('l$n', :t) > now();
		SELECT idem_complete('l$n', :t, '{"n": $n}');
		SELECT response FROM idem_claim('l$n', lease => '1 min');
		SELECT outcome FROM idem_claim_many('{m$n,t$n}');
		SELECT outcome FROM idem_claim('short$n', ttl => '1 ms');
		SELECT outbox_enqueue('shop', '{"n": $n}', key => 'k') > 0;
		SELECT outcome FROM stock_reserve('hat', 1, 'r$n');
		SELECT outcome FROM stock_reserve(stock_lines('{"hat": 1, "cap": 1}'), 's$n');
		SELECT outcome FROM stock_reserve('hat', 1, 'lapses$n', ttl => '1 ms');
		SELECT stock_confirm('r$n'), stock_cancel('s$n');
		SELECT outcome FROM stock_extend('s$n');
		SELECT outcome FROM stock_reinstate('s$n'))),
		join("\n", qw(claimed completed t), '', qq({"n": $n}), qw(claimed completed claimed t reserved reserved reserved
			done|done already_cancelled done)), "$when: an application does what it does");
	is(sql(qq(
		SELECT idem_forget('l$n');
		SELECT stock_receive('hat', 2) > 0, stock_adjust('hat', -1, 'lost') > 0;
		SELECT outbox_pause('shop');
		SELECT outbox_resume('shop');
		SELECT outbox_alter('shop', topics => '{shop}');
		SELECT outbox_rotate_secret('other') LIKE 'whsec_%';
		SELECT count(*) FROM stock_verify() WHERE NOT ok)), "t\nt|t\n\n\n\nt\n0", "$when: and so do operators");
	$receiver->wait_for('shop', events => $n);
	wait_until($node, "SELECT count(*) = 0 FROM stock_hold WHERE reservation = 'lapses$n'", "$when: reservations expire");
	wait_until($node, qq(SELECT NOT EXISTS (SELECT FROM idem_ring r, idem_sample(r.slot, 1000) s WHERE s.expired > s.keys / 2 AND s.keys > 20)),
		"$when: keys are swept");
	return;
}

# --- the old version, with data

$node->start;
sql("CREATE EXTENSION idempotency VERSION '" . OLD . "'");
wait_for_workers($node);
is(sql("SELECT extversion FROM pg_extension WHERE extname = 'idempotency'"), OLD, 'this is the version before');
sql(q(
	CREATE ROLE shop_app LOGIN;
	CREATE ROLE auditor;
	SELECT idempotency_grant('shop_app');
	GRANT SELECT ON outbox_subscriptions TO auditor;
	CREATE VIEW lag AS SELECT name, lag FROM outbox_subscriptions;
	SELECT stock_receive('hat', 1000), stock_receive('cap', 1000), stock_receive('kept', 100);
	SELECT stock_reserve('kept', 1, 'kept ' || i, ttl => '1 h') FROM generate_series(1, 30) i;
	SELECT stock_confirm('kept ' || i) FROM generate_series(1, 10) i;
	SELECT idem_claim('k' || i, 'kept', request => 'r') FROM generate_series(1, 5) i;
	SELECT idem_claim('leased', 'kept', lease => '1 h')));
subscribe($node, $receiver, '/ok/shop', topics => "'{shop}'");
subscribe($node, $receiver, '/ok/load', topics => "'{load}'");
subscribe($node, $receiver, '/fail/dead', topics => "'{dead}'", retry_schedule => "'{0 s}'");
sql(q(SELECT outbox_enqueue('dead', '{"n": 1}')));
wait_until($node, 'SELECT sum(dead) = 1 FROM outbox_subscriptions', 'there is a dead letter')
  or die 'the relay does not work with the old objects';
sql(q(SELECT outbox_subscribe('other', 'http://192.0.2.1/', topics => '{none}')));
wait_until($node, q(SELECT count(*) < 20 FROM stock_log WHERE sku = 'kept'), 'and compacted stock');

sql('CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', q(
	CREATE SCHEMA "Odd schema";
	CREATE EXTENSION idempotency SCHEMA "Odd schema" VERSION ') . OLD . q(';
	ALTER TABLE "Odd schema".outbox_attempt ADD CONSTRAINT by_hand PRIMARY KEY (subscription, position, attempt, at)));
# As pg_restore --disable-triggers leaves them.
$node->safe_psql('elsewhere', q(
	SET search_path = "Odd schema";
	ALTER TABLE idem_key_1 DISABLE TRIGGER ALL;
	INSERT INTO idem_key_1 VALUES (1, now() + '1 h', 1, 'c', '', 'restored');
	ALTER TABLE idem_key_1 ENABLE TRIGGER ALL;
	ALTER TABLE stock_item DISABLE TRIGGER ALL;
	ALTER TABLE stock_item ENABLE TRIGGER ALL));

# --- the new library, the old objects

everything_works('with the old objects');
is($node->safe_psql('elsewhere', q(SET search_path = "Odd schema"; SELECT outcome, stock_receive('hat', 1) > 0 FROM idem_claim('own'))), 'claimed|t',
	'where triggers are ordinary ones, which these cannot repair, all goes on');
my $session = session($node);
my $in_session = q(SELECT outcome FROM idem_claim(gen_random_uuid()::text); SELECT outbox_enqueue('x', '{}') > 0; SELECT stock_receive('cap', 1) > 0; SELECT outbox_alter('load', topics => '{load}'));
$session->query_safe($in_session);
my $before = fingerprint('postgres');
unlike($before, qr/: 0 /, 'each subject has something to lose');
my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';
command_ok([ 'pg_dump', '-Fc', '-f', "$file.old", $node->connstr('postgres') ], 'pg_dump');
is(join('', slurp_file($node->logfile) =~ /^.* (?:WARNING|ERROR|FATAL|PANIC): .*\n/mg), '',
	'nothing in the log complains of what is missing');

# --- ALTER EXTENSION UPDATE, in the midst of it all

append_to_file("$file.load", q(
BEGIN;
SELECT idem_claim(gen_random_uuid()::text);
SELECT outbox_enqueue('load', '{}', key => 'k');
SELECT stock_reserve('hat', 1, :client_id || 'x' || :n);
SELECT stock_cancel(:client_id || 'x' || :n);
COMMIT;
\\set n :n + 1
));
my $pid = worker_pid($node, 'relay');
my $pgbench = IPC::Run::start([ 'pgbench', '-n', '-U', 'shop_app', '-f', "$file.load", '-D', 'n=1', '-c', '3', '-T', '2',
		'-M', 'prepared', $node->connstr('postgres') ], '>', \my $output, '2>&1');
$receiver->wait_for('load', requests => 20);
sql('ALTER EXTENSION idempotency UPDATE');
my $sent = $receiver->requests('load');
ok($pgbench->finish, 'clients noticed nothing') || diag($output);
$receiver->wait_for('load', requests => $sent + 20);
is(worker_pid($node, 'relay'), $pid, 'nor did the relay');
is(fingerprint('postgres'), $before, 'data is what it was');
sql('SELECT idempotency_grant(\'shop_app\')');
everything_works('with the new ones');
like($session->query($in_session), qr/^claimed\nt\nt\n*$/, 'a session that was there before goes on');
$session->quit;

# Somebody who has one of the tables, and goes on to another.
my $reader = session($node, 'elsewhere');
$reader->query_safe('BEGIN; SELECT count(*) FROM "Odd schema".outbox_home');
my $update = IPC::Run::start([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-c', 'ALTER EXTENSION idempotency UPDATE',
		$node->connstr('elsewhere') ], '>', \$output, '2>&1');
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'ALTER EXTENSION%' AND wait_event IN ('relation', 'PgSleep')");
$reader->query_safe('SELECT count(*) FROM "Odd schema".outbox_subscription; COMMIT');
$reader->quit;
ok($update->finish, 'an update and a reader do not deadlock') || diag($output);
is($node->safe_psql('elsewhere', q(SELECT string_agg(DISTINCT tgenabled::text, '') FROM pg_trigger WHERE tgname ~ '^(idem_key_redirect|stock_guard)')), 'A',
	'triggers fire always again');
is($node->safe_psql('elsewhere', q(SET search_path = "Odd schema"; SELECT outcome FROM idem_claim('restored'))), 'completed', 'and a key that came past them is remembered');

# --- the same as a fresh install

sql('CREATE DATABASE fresh');
$node->safe_psql('fresh', q(
	CREATE EXTENSION idempotency;
	SELECT idempotency_grant('shop_app');
	GRANT SELECT ON outbox_subscriptions TO auditor;
	CREATE VIEW lag AS SELECT name, lag FROM outbox_subscriptions));
sql('CREATE DATABASE fresh_elsewhere');
$node->safe_psql('fresh_elsewhere', 'CREATE SCHEMA "Odd schema"; CREATE EXTENSION idempotency SCHEMA "Odd schema"');
my $upgraded = catalog($node, 'postgres');
cmp_ok(scalar(keys %$upgraded), '>', 500, 'the catalog of the extension has many entries');
same_catalog($upgraded, catalog($node, 'fresh'), 'an upgraded database has what a fresh one has', HINT);
same_catalog(catalog($node, 'elsewhere'), catalog($node, 'fresh_elsewhere'), 'in another schema, too', HINT);

# --- dump and restore

command_ok([ 'pg_dump', '-Fc', '-f', "$file.new", $node->connstr('postgres') ], 'pg_dump of the upgraded database');
my $now = fingerprint('postgres');
for my $dump (qw(old new))
{
	sql("CREATE DATABASE $dump");
	command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr($dump), "$file.$dump" ], "pg_restore of the $dump one");
	is(fingerprint($dump), $dump eq 'old' ? $before : $now, 'all of it is there');
}
$node->safe_psql('old', q(SELECT idempotency_grant('shop_app')));
same_catalog(catalog($node, $_), $upgraded, "and its catalog is that of the new version ($_)", HINT) for qw(old new);

# --- there is no way back

for my $version (OLD, '9.9', 'none')
{
	my ($code, $stdout, $stderr) = $node->psql('postgres', "ALTER EXTENSION idempotency UPDATE TO '$version'");
	like($stderr, qr/ERROR: +extension "idempotency" has no update path from version "[\d.]+" to version "\Q$version\E"/,
		"there is no way to $version, and the server says so");
}
everything_works('nothing has changed by that');

# --- the version stands in several places

my $version = sql("SELECT extversion FROM pg_extension WHERE extname = 'idempotency'");
my %said = (
	'META.json' => qr/"version": "(.*?)"/,
	'CHANGELOG.md' => qr/^## ([\d.]+)/m,
	'docs/reference.md' => qr/^Version ([\d.]*\d)/m,
	'docs/outbox.md' => qr/^User-Agent: idempotency\/(.*)$/m);
for my $file (sort keys %said)
{
	my ($there) = slurp_file("$FindBin::RealBin/../../../$file") =~ $said{$file};
	is($there, $version, "$file is about this version");
}
is((($receiver->requests('shop'))[-1]{headers}{'user-agent'}), "idempotency/$version", 'receivers are told as well');

done_testing();
