# However a dump is made and restored, everything is restored, including
# privileges, and the copy sends nothing by itself.  If this fails, a backup
# restored in one of these ways forgets keys, or sends webhooks twice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = new_server('restore');
my $dumps = PostgreSQL::Test::Utils::tempdir();

$node->start;

# Everything that a dump contains.  Keys change their table.
sub contents
{
	my ($server, $db, $names) = @_;
	my @relations = split(/\n/, $server->safe_psql($db, q(
		SELECT n.nspname || '.' || c.relname
		FROM pg_extension e, unnest(e.extconfig) d, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE e.extname = 'idempotency' AND c.oid = d AND c.relname !~ '^idem_key_' ORDER BY c.relname)));
	my $schema = $server->safe_psql($db, q(SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency'));
	my $query = join(' UNION ALL ', map {
		"SELECT '" . s/^\w+\.//r . "', count(*), md5(string_agg(v, ' ' ORDER BY v)) FROM "
		  . (/_seq$/ ? "(SELECT last_value::text" : '(SELECT t::text') . " FROM $_ t) t (v)"
	} @relations, "$schema.idem_key");
	return $server->safe_psql($db, "SELECT * FROM ($query) t (name, rows, sum)" . ($names ? " WHERE name ~ '^($names)'" : '') . ' ORDER BY name');
}

# The privileges, and who granted them.
sub privileges
{
	my ($server, $db) = @_;
	return $server->safe_psql($db, q(
		SELECT p.oid::regprocedure::text, p.proacl::text FROM pg_proc p
		JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		UNION ALL
		SELECT c.oid::regclass::text, c.relacl::text FROM pg_class c
		JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
		UNION ALL
		SELECT nspname, nspacl::text FROM pg_namespace WHERE nspname IN ('public', 'idempotency_internal')
		ORDER BY 1));
}

sub create
{
	my ($db, $sql) = @_;
	sql("CREATE DATABASE $db");
	$node->safe_psql($db, $sql) if $sql;
	return $node->connstr($db);
}

# Only the original sends events, although relays have looked.
sub is_silent
{
	my ($server, $db, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for_workers($server, $db);
	wait_for_pass($server, $db);
	my %ids = map { $_->{id} => 1 } $receiver->requests('shop');
	return is(scalar(keys %ids) . ' ' . $server->safe_psql($db, 'SELECT DISTINCT state FROM outbox_subscriptions'),
		'1 held', "$what: the copy is silent");
}

# --- the original: an event is in flight, another waits behind it

sql(q(
	CREATE DATABASE shop;
	CREATE ROLE shop_app LOGIN;
	CREATE ROLE "Op er" LOGIN;
	CREATE ROLE nobody LOGIN;
	ALTER DATABASE shop SET idempotency.ttl = '3 d';
	ALTER ROLE shop_app SET idempotency.lease = '7 s'));
sql(q(
	CREATE EXTENSION idempotency;
	SELECT idempotency_grant('shop_app'), idempotency_grant_operator('"Op er"');
	GRANT SELECT ON stock_history TO "Op er";
	REVOKE EXECUTE ON FUNCTION outbox_adopt FROM "Op er";
	SELECT idem_claim('done'), idem_claim('leased', lease => '1 h');
	SELECT idem_switch();
	SELECT token AS t FROM idem_claim('failed', lease => '1 h') \gset
	SELECT idem_fail('failed', :t, '"declined"', retry => false);
	SELECT idem_fence('moved');
	SELECT outbox_topic('shop', description => 'Something was sold.');
	SELECT stock_receive('hat', 10), stock_reserve('hat', 3, 'order-1', ttl => '1 h'),
		stock_reserve('hat', 8, 'order-2', wait => true)), 'shop');
subscribe($node, $receiver, '/hold/shop', db => 'shop', topics => "'{shop}'", max_in_flight => 1, timeout => "'10 min'");
subscribe($node, $receiver, '/fail/dead', db => 'shop', topics => "'{dead}'", retry_schedule => "'{0 s}'");
sql(q(SELECT outbox_enqueue('dead', '{"n": 0}'), outbox_enqueue('shop', '{"n": 1}', key => 'k'), outbox_enqueue('shop', '{"n": 2}', key => 'k'),
	outbox_cancel(outbox_enqueue('shop', '{"n": 3}', deliver_at => now() + interval '1 h'))), 'shop');
$receiver->wait_for('shop', requests => 1);
$node->poll_query_until('shop', 'SELECT sum(dead) = 1 FROM outbox_subscriptions');
$node->poll_query_until('shop', q(SELECT position = (SELECT last_value FROM idempotency_internal.outbox_position_seq)
	FROM idempotency_internal.outbox_head)) or die 'the relay does not record how far it has read';
$node->poll_query_until('shop', 'SELECT swept FROM idempotency_internal.outbox_cancelled') or die 'the sweeper does not see a cancellation';
my $contents = contents($node, 'shop');
unlike($contents, qr/^(?!stock_history_|outbox_log_[12])\w+\|0\|/m, 'there is something of everything');

command_ok([ 'pg_dump', '-Fd', '-j', '2', '-f', "$dumps/d", $node->connstr('shop') ], 'pg_dump -j');
command_ok([ 'pg_dump', '-f', "$dumps/plain", $node->connstr('shop') ], 'pg_dump');
command_ok([ 'pg_dumpall', '--no-sync', '-f', "$dumps/all", '-d', $node->connstr('postgres') ], 'pg_dumpall');

# --- parallel jobs; the log and the row that tells that this is a copy come last

my $copy = create('parallel');
command_ok([ 'pg_restore', '--exit-on-error', '-j', '3', '-d', $copy, "$dumps/d" ], 'pg_restore -j');
is(contents($node, 'parallel'), $contents, 'all of it is there');
is(privileges($node, 'parallel'), privileges($node, 'shop'), 'and everybody may do what he might');
is_silent($node, 'parallel', 'pg_restore -j');

$copy = create('late');
IPC::Run::run([ 'pg_restore', '-l', "$dumps/d" ], '>', \my $list) or die 'pg_restore -l';
my $late = join('', $list =~ /^(.* TABLE DATA idempotency_internal outbox_(?:home|log_0) .*\n)/mg);
append_to_file("$dumps/early", $list =~ s/^.* TABLE DATA idempotency_internal outbox_(?:home|log_0) .*\n//mgr);
append_to_file("$dumps/late", $late);
command_ok([ 'pg_restore', '--exit-on-error', '-L', "$dumps/early", '-d', $copy, "$dumps/d" ], 'pg_restore -L, without outbox_home and the log');
is_silent($node, 'late', 'in the middle of a restore');
$node->safe_psql('late', 'SELECT idempotency_internal.outbox_expire()');
command_ok([ 'pg_restore', '--exit-on-error', '-L', "$dumps/late", '-d', $copy, "$dumps/d" ], 'and then the rest');
is_silent($node, 'late', 'at its end');
is(contents($node, 'late'), $contents, 'and all of it is there');

# --- where the extension exists, in another schema, in parts

$copy = create('there', 'CREATE EXTENSION idempotency');
wait_for_workers($node, 'there');
command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '-d', $copy, "$dumps/d" ], 'pg_restore --data-only');
is_silent($node, 'there', 'data only');
is(contents($node, 'there'), $contents, 'all of it is there');

$copy = create('moved', 'CREATE SCHEMA moved; ALTER DATABASE moved SET search_path = moved, idempotency_internal');
my $plain = slurp_file("$dumps/plain");
$plain =~ s/\bpublic\./moved./g;
$plain =~ s/ON SCHEMA public|WITH SCHEMA public/$& =~ s{public}{moved}r/ge;
append_to_file("$dumps/moved", $plain);
command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-f', "$dumps/moved", '-d', $copy ], 'a plain dump with another schema written in');
is_silent($node, 'moved', 'in another schema');
is(contents($node, 'moved'), $contents, 'all of it is there');

$copy = create('parts', 'CREATE EXTENSION idempotency');
IPC::Run::run([ 'pg_dump', '--data-only', '-t', 'idempotency_internal.stock_*', $node->connstr('shop') ],
	'|', [ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $copy ], '>', \my $output);
is(contents($node, 'parts', 'stock'), join("\n", grep { /^stock/ } split(/\n/, $contents)), 'pg_dump -t carries one subject alone');
is($node->safe_psql('parts', "SELECT stock_confirm('order-1'), (SELECT count(*) FROM idem_key)"), 'done|0', 'which goes on');

$copy = create('empty');
IPC::Run::run([ 'pg_dump', '--schema-only', $node->connstr('shop') ], '|', [ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $copy ], '>', \$output);
is(privileges($node, 'empty'), privileges($node, 'shop'), 'pg_dump --schema-only has the privileges');
is(join("\n", grep { !/_seq\|1\||\|0\|/ } split(/\n/, contents($node, 'empty'))), '', 'and no rows');
subscribe($node, $receiver, '/ok/empty', db => 'empty');
$node->safe_psql('empty', q(SELECT outbox_enqueue('t', '{"n": 1}')));
$receiver->wait_for('empty', events => 1);

# --- another server

my $other = new_server('elsewhere');
$other->start;
IPC::Run::run([ 'psql', '-Xq', '-f', "$dumps/all", '-d', $other->connstr('postgres') ], '>', \$output, '2>', \my $errors);
is(join("\n", grep { !/ERROR: +role "\w+" already exists/ } $errors =~ /^.*ERROR:.*$/mg), '', 'pg_dumpall, restored in another server');
is(contents($other, 'shop'), $contents, 'all of it is there');
is(privileges($other, 'shop'), privileges($node, 'shop'), 'everybody may do what he might');
is_silent($other, 'shop', 'in another server');
is($other->safe_psql('shop', q(SELECT outcome FROM idem_claim('done'); SHOW idempotency.ttl; SHOW idempotency.lease), extra_params => [ '-U', 'shop_app' ]),
	"completed\n3d\n7s", 'an application goes on there, with its settings');
is($other->safe_psql('shop', q(SELECT outbox_pause('dead'); SELECT count(*) FROM stock_history), extra_params => [ '-U', 'Op er' ]), "\n2",
	'and so does an operator');
is(error_code($other, 'shop', "SET ROLE $_->[0]; SELECT $_->[1]"), '42501', "$_->[0] may not do there what he might not here: $_->[1]")
  for ([ 'shop_app', "outbox_pause('dead')" ], [ '"Op er"', 'outbox_adopt()' ], [ 'nobody', "idem_claim('x')" ]);

# --- over the original database

my $privileges = privileges($node, 'shop');
sql(q(SELECT idem_claim('forgotten'), outbox_enqueue('shop', '{"n": 3}')), 'shop');
command_ok([ 'pg_restore', '--exit-on-error', '--clean', '--if-exists', '-d', $node->connstr('shop'), "$dumps/d" ],
	'pg_restore --clean over the original, with requests out');
is(privileges($node, 'shop'), $privileges, 'everybody may do what he might');
is(sql("SELECT outcome FROM idem_claim('done') UNION ALL SELECT outcome FROM idem_claim('forgotten')", 'shop'), "completed\nclaimed",
	'it is what it was when it was dumped');
is_silent($node, 'shop', 'over itself');
$receiver->release('shop');
sql('SELECT outbox_adopt(keep_identity => true)', 'shop');
$receiver->wait_for('shop', events => 2);
like(join(' ', map { $_->{id} =~ s/.*_(\d+)_\d+$/$1/r } $receiver->requests('shop')), qr/^2 (?:2 )+3$/, 'then it goes on,');
my %identities = map { $_->{id} =~ s/_\d+_\d+$//r => 1 } $receiver->requests('shop');
is(scalar(keys %identities), 1, 'under its identity');

done_testing();
