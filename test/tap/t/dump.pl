# pg_dump contains keys, subscriptions, undelivered events and stock; the copy
# continues where the original was, but sends nothing until it is adopted.  If
# this fails, a restored backup forgets what was done, or does all of it again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
# The sweeper must not run before all segments of keys are in use.
my $node = start_server('dump', conf => 'idempotency.sweep_interval = 1h');

sub copy_sql
{
	return sql(shift, 'copy');
}

# --- what there is

sql(q(
	SELECT token AS t FROM idem_claim('paid', request => 'r', lease => '1 min') \gset
	SELECT idem_complete('paid', :t, '{"charge": 1}');
	SELECT idem_claim('running', lease => '1 h');
	SELECT idem_claim('expired', ttl => '1 us');
	SELECT idem_switch();
	SELECT token AS t FROM idem_claim('second', 'scope', lease => '1 min') \gset
	SELECT idem_fail('second', :t, '"declined"', 'scope', retry => false);
	SELECT idem_claim('expired again', ttl => '1 us');
	SELECT idem_switch();
	SELECT idem_claim('third', lease => '1 us', ttl => '1 h');
	SELECT stock_receive('hat', 10, 'first delivery');
	SELECT stock_reserve('hat', 3, 'order-1', ttl => '1 h');
	SELECT stock_reserve('hat', 2, 'order-2', ttl => '1 h');
	SELECT stock_reserve('hat', 1, 'order-3', ttl => '1 h');
	SELECT stock_confirm('order-2')));
subscribe($node, $receiver, '/hold/open', topics => "'{open}'", headers => q('{"X-Shop": "main"}'));
subscribe($node, $receiver, '/switch/retried', topics => "'{retried}'",
	retry_schedule => "'{0 s,1 h}'");
subscribe($node, $receiver, '/switch/dead', topics => "'{dead}'", retry_schedule => "'{0 s}'");
subscribe($node, $receiver, '/ok/done', topics => "'{done}'");
$receiver->switch($_, 'fail') for qw(retried dead);
sql(q(
	SELECT outbox_enqueue('retried', '{"n": 1}', key => 'k');
	SELECT outbox_enqueue('retried', '{"n": 2}', key => 'k');
	SELECT outbox_enqueue('dead', '{"n": 1}');
	SELECT outbox_enqueue('done', '{"n": 1}');
	SELECT outbox_enqueue('open', '{"n": 1}');
	SELECT outbox_enqueue('open', '{"n": 2}')));
$receiver->wait_for('open', requests => 1);
$receiver->wait_for('done', requests => 1);
$node->poll_query_until('postgres', q(SELECT sum(waiting) = 1 AND sum(parked) = 1 AND sum(dead) = 1
	AND bool_and(position = last_value OR name = 'open') FROM outbox_subscriptions, outbox_position_seq));

# A straggler whose end the copy will never see.
my $session = session($node);
$session->query_safe(q(BEGIN; SELECT outbox_enqueue('done', '{"n": 2}')));
sql(q(SELECT outbox_enqueue('done', '{"n": 3}')));
$receiver->wait_for('done', requests => 2);

# Keys are in three segments, one of which may be retired, with expired keys.
is(sql(q(SELECT count(*) FROM idem_ring WHERE state <> 'empty')), '3', 'all segments of keys are in use');

# --- dump and restore

my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';
command_ok([ 'pg_dump', '-Fc', '-f', $file, $node->connstr('postgres') ], 'pg_dump');
sql('CREATE DATABASE copy');
command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), $file ], 'pg_restore');
$session->query_safe('COMMIT');
$session->quit;

is(copy_sql('SELECT outcome, response FROM idem_claim(\'paid\')'), 'completed|{"charge": 1}',
	'answers are there');
is(copy_sql("SELECT outcome FROM idem_claim('paid', request => 'other')"), 'mismatch',
	'with the requests they belong to');
is(copy_sql("SELECT outcome FROM idem_claim('running')"), 'in_progress', 'leases go on');
is(copy_sql("SELECT outcome, response FROM idem_claim('second', 'scope')"), 'failed|"declined"',
	'keys of every segment are there');
is(copy_sql("SELECT outcome, attempt FROM idem_claim('third', lease => '1 h')"), 'claimed|2',
	'and go on where they were');
is(copy_sql("SELECT outcome, attempt FROM idem_claim('expired')"), 'claimed|1', 'expired ones are not');
cmp_ok(copy_sql("SELECT token FROM idem_claim('new', lease => '1 s')"), '>',
	sql('SELECT max(token) FROM idem_key'), 'tokens go on');
is(copy_sql("SELECT * FROM stock_level('hat')"), '4|4', 'stock is there');
is(copy_sql("SELECT stock_confirm('order-1')"), 'done', 'reservations can be confirmed');
is(copy_sql("SELECT stock_confirm('order-2')"), 'already_confirmed', 'once');
copy_sql("UPDATE stock_hold SET expires_at = now() WHERE reservation = 'order-3'");
$node->append_conf('postgresql.conf', 'idempotency.sweep_interval = 1s');
$node->reload;
ok($node->poll_query_until('copy', q(SELECT string_agg(change::text, ' ' ORDER BY id) = 'reserve expire'
	FROM stock_history WHERE reservation = 'order-3')), 'and expire there');
is(copy_sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
is(copy_sql('SELECT name, url, topics, secret, headers FROM outbox_subscription ORDER BY id'),
	sql('SELECT name, url, topics, secret, headers FROM outbox_subscription ORDER BY id'), 'subscriptions are there, with their secrets');
is(copy_sql('SELECT * FROM idempotency_audit ORDER BY at'), sql('SELECT * FROM idempotency_audit ORDER BY at'), 'so is the audit');
is(copy_sql('SELECT name, waiting, parked, dead FROM outbox_subscriptions ORDER BY name'),
	"dead|0|0|1\ndone|0|0|0\nopen|0|0|0\nretried|1|1|0", 'so are deferred deliveries and dead letters');
is(copy_sql('SELECT * FROM outbox_attempts ORDER BY 1, 2, 3'), sql('SELECT * FROM outbox_attempts ORDER BY 1, 2, 3'),
	'and every attempt at them');
cmp_ok(copy_sql(q(SELECT outbox_enqueue('open', '{"n": 3}'))), '>',
	sql(q(SELECT max(position) FROM outbox_log WHERE topic <> 'done')), 'positions go on');
is(copy_sql(q(SELECT outbox_subscribe('late', 'http://192.0.2.1/', topics => '{none}') IS NOT NULL)), 't',
	'new subscriptions do not collide with restored ones');
copy_sql("SELECT outbox_unsubscribe('late')");

# --- data only, into a database where the extension exists and is in use

sql('CREATE DATABASE other');
$node->safe_psql('other', q(CREATE EXTENSION idempotency; SELECT idem_claim('own'), idem_claim('expired', ttl => '1 us'), idem_switch()));
command_ok([ 'pg_restore', '--exit-on-error', '--data-only', (map { "--table=idem_key_$_" } 0 .. 2), '--table=idem_token_seq',
		'-d', $node->connstr('other'), $file ], 'pg_restore --data-only');
is($node->safe_psql('other', q(SELECT key, outcome FROM unnest(ARRAY['own', 'paid', 'running', 'third']) key, idem_claim(key) ORDER BY key)),
	"own|completed\npaid|completed\nrunning|in_progress\nthird|claimed", 'adds the keys');
cmp_ok($node->safe_psql('other', "SELECT token FROM idem_claim('new', lease => '1 s')"), '>',
	sql('SELECT max(token) FROM idem_key'), 'and tokens go on');
$node->psql('other', "COPY idem_key_2 FROM STDIN;\n1\t2999-01-01\t1\tc\t\town\t\\N\t\\N\t\\N\n\\.\n", stderr => \my $stderr);
like($stderr, qr/ERROR: +key "own" is there already/, 'a key that is there already is refused');
sql('DROP DATABASE other');

# --- held, then adopted

ok($node->wait_for_log(qr/WARNING:  outbox subscriptions are held because this database is a copy/),
	'the copy is held');
wait_for_pass($node, 'copy');
is(copy_sql('SELECT DISTINCT state FROM outbox_subscriptions'), 'held', 'and the view says so');
my $originals = () = map { $receiver->requests($_) } qw(open retried dead done);
$receiver->release('open');
$receiver->switch('retried', 'ok');
copy_sql('SELECT outbox_adopt()');
copy_sql("UPDATE outbox_delivery SET due_at = now() WHERE state = 'waiting'; SELECT outbox_wake()");

sub from_copy
{
	my ($name) = @_;
	my %original = map { $_ => 1 }
	  split(/\n/, sql(q(SELECT replace(identity::text, '-', '') FROM outbox_home)));
	return join(' ', map { $_->{data}{n} }
		  grep { $_->{id} =~ /^msg_([0-9a-f]+)_/ && !$original{$1} } $receiver->requests($name));
}
$receiver->wait_for('open', events => 5);
$receiver->wait_for('retried', events => 3);
like(from_copy('open'), qr/^[123] [123] [123]$/,
	'after outbox_adopt it sends what was undelivered, and what is new');
$node->poll_query_until('copy', "SELECT count(*) = 0 FROM outbox_delivery WHERE state <> 'dead'");
is(from_copy('retried'), '1 2', 'retries and what is parked behind them go on, in order');
$receiver->switch('dead', 'ok');
is(copy_sql("SELECT outbox_redrive('dead')"), '1', 'dead letters can be sent again');
$receiver->wait_for('dead', events => 2);
is(from_copy('dead'), '1', 'and are');
is(from_copy('done'), '', 'what was delivered is not sent again, nor what was never committed');
is(scalar(grep { !$_->{verified} } map { $receiver->requests($_) } qw(open retried dead)), 0,
	'all of it is signed');

# --- the role of an application dumps the schema of its own database

# With default privileges on everything, which must not reach what is internal,
# also in a subtransaction, as migration tools make.
sql('CREATE ROLE shop LOGIN');
sql('CREATE DATABASE shop OWNER shop');
sql(<<'END', 'shop');
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO shop;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO shop;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO shop;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO shop;
BEGIN;
SAVEPOINT s;
CREATE EXTENSION idempotency;
COMMIT;
SELECT idempotency_grant('shop');
SELECT outbox_enqueue('t', '{}');
END
my $connection = $node->connstr('shop') . ' user=shop';
command_ok([ 'pg_dump', '--schema-only', $connection ], 'the application dumps the schema');
command_ok([ 'pg_dump', '-N', 'idempotency_internal', $connection ], 'and its own data');
is(error_code($node, 'shop', "SET ROLE shop; $_"), '42501', "and may not: $_")
  for 'SELECT payload FROM idempotency_internal.outbox_log_0', 'SELECT idempotency_internal.outbox_retire()',
  'CREATE TABLE idempotency_internal.mine ()';

done_testing();
