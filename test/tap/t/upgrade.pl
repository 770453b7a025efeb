# A database of the previous version works again after ALTER EXTENSION UPDATE,
# with all its data, and equals a fresh install.  Until then the new library
# refuses to use it.  If this fails, an upgrade of the package loses keys,
# events or stock, or leaves a database that is neither old nor new.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Catalog;
use PostgreSQL::Test::Utils;
use Receiver;
use Released;
use Server;
use Test::More;

use constant OLD => '0.2.0';
use constant OLD_XID => 801;	# the last transaction in data-0.2.0.sql
use constant HINT => "The part in src/upgrade/ lacks what the install script has, or has more:";
use constant INTERNAL => 'idempotency_internal';

my $upgrade = "$FindBin::RealBin/../../upgrade";

install_released(OLD, replace_lost => 1);
my $receiver = Receiver->start;
my $node = new_server('upgrade', preload => 0,
	conf => "idempotency.stock_compact_after = 20\nidempotency.sweep_interval = 50ms\nmax_worker_processes = 30");

# A query for everything that must be the same before and after: tables, public
# views, and the rings.
sub fingerprint
{
	my ($internal, $public, $segment) = @_;
	my ($partition, $number, $partition_of_delivery) =
	  $internal eq INTERNAL ? qw(outbox_partition number partition) : qw(outbox_lane lane lane);
	my %part_of = (
		idem_key => "SELECT key, scope, token, expires_at, attempt, state, lease_until, request, response FROM $public.idem_key WHERE scope = 'kept'",
		outbox_subscription => 'SELECT id, name, url, topics, secret, old_secret, old_until, headers, format, ordered, max_in_flight,'
		  . ' timeout, retry_schedule, partitions, state, reason, failing_since, version, created_at'
		  . " FROM $internal.outbox_subscription WHERE name NOT IN ('works', 'load')",
		outbox_partition => "SELECT subscription, $number, position, stragglers, straggler_froms, lost, delivered FROM $internal.$partition WHERE subscription <= 5",
		outbox_delivery => "SELECT subscription, position, $partition_of_delivery, state, blocks_key, attempts, due_at, last_at, last_status,"
		  . " last_error, created_at, topic, key, type, payload, headers FROM $internal.outbox_delivery",
		outbox_attempt => "SELECT * FROM $internal.outbox_attempt",
		outbox_home => "SELECT identity, system_identifier, created_at FROM $internal.outbox_home",
		outbox_log => 'SELECT position, xid, created_at, deliver_at, topic, key, type, payload, headers'
		  . " FROM $public.outbox_log WHERE topic NOT IN ('works', 'load')",
		outbox_dead => "SELECT * FROM $public.outbox_dead",
		stock_hold => "SELECT quantity, expires_at, line, reservation, sku FROM $internal.stock_hold WHERE sku = 'kept'",
		stock_levels => "SELECT sku, available, reserved, received, adjusted, confirmed FROM $public.stock_levels WHERE sku = 'kept'",
		stock_history => "SELECT id, quantity, at, change, line, sku, reservation, actor, note FROM $public.stock_history WHERE sku = 'kept'");
	if ($segment)
	{
		$part_of{"${_}_ring"} = "SELECT slot, state, $segment FROM $internal.${_}_ring" for qw(idem outbox stock);
		$part_of{$_} = "SELECT last_value, is_called FROM $internal.$_"
		  for qw(idem_token_seq outbox_position_seq stock_log_id_seq);
	}
	return join(' UNION ALL ', map { "SELECT '$_: ' || count(*) || ' ' || md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM ($part_of{$_}) t" }
		  sort keys %part_of) . ' ORDER BY 1';
}

# Runs once everything that an application and the workers do.
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
		SELECT outbox_enqueue('works', '{"n": $n}', key => 'k', dedup_key => '$n') > 0;
		SELECT outbox_cancel(outbox_enqueue('works', '{"n": 0}', deliver_at => now() + interval '1 h'));
		SELECT outcome FROM stock_reserve('hat', 1, 'r$n');
		SELECT outcome FROM stock_reserve_many('{"hat": 1, "cap": 1}', 's$n');
		SELECT shortages -> 0 ->> 'sku' FROM stock_reserve_many('{"cap": 100000}', 'too many$n');
		SELECT outcome FROM stock_reserve('hat', 1, 'lapses$n', ttl => '1 ms');
		SELECT stock_confirm('r$n'), stock_cancel('s$n');
		SELECT outcome FROM stock_extend('s$n');
		SELECT outcome FROM stock_reinstate('s$n');
		SELECT state FROM stock_reservation_status('s$n'))),
		join("\n", qw(claimed completed t), '', qq({"n": $n}), qw(claimed completed claimed t t reserved reserved cap reserved
			done|done already_cancelled done open)), "$when: an application does what it does");
	is(sql(qq(
		SELECT idem_forget('l$n');
		SELECT stock_receive('hat', 2, actor => 'me') > 0, stock_adjust('hat', -1, 'lost') > 0;
		SELECT stock_transfer('hat', 'cap', 1);
		SELECT count(*) FROM stock_history WHERE change = 'transfer';
		SELECT outbox_retry('works');
		SELECT outbox_pause('works');
		SELECT outbox_resume('works');
		SELECT outbox_alter('works', topics => '{works}');
		SELECT outbox_rotate_secret('later') LIKE 'whsec_%';
		SELECT count(*) FROM stock_verify() WHERE NOT ok;
		SELECT count(*) FROM idempotency_status() WHERE state = 'error')), "t\nt|t\n\n@{[ 2 * $n ]}\n0\n\n\n\nt\n0\n0", "$when: and so do operators");
	$receiver->wait_for('works', events => $n);
	wait_until($node, 'SELECT reserved > 0 AND (SELECT sum(answered_2xx) > 0 FROM outbox_stats) AND (SELECT count(*) = 2 FROM idempotency_workers) FROM stock_stats',
		"$when: statistics count that");
	wait_until($node, 'SELECT count(*) = 0 FROM ' . INTERNAL . ".stock_hold WHERE reservation = 'lapses$n'", "$when: reservations expire");
	wait_until($node, 'SELECT NOT EXISTS (SELECT FROM ' . INTERNAL . '.idem_ring r, ' . INTERNAL
		  . '.idem_sample(r.slot, 1000) s WHERE s.expired > s.keys / 2 AND s.keys > 20)', "$when: keys are swept");
	return;
}

# Errors in the log since an offset.
sub complaints
{
	my ($offset) = @_;
	return slurp_file($node->logfile, $offset) =~ /^.* ((?:WARNING|ERROR|FATAL|PANIC): .*)\n/mg;
}

# --- databases as the previous version has left them

# Creates one with the data, which was inserted with triggers disabled.
sub create_old
{
	my ($db, $schema, $afterwards) = @_;
	my $url = $receiver->url('');

	$node->safe_psql('postgres', "CREATE DATABASE $db") unless $db eq 'postgres';
	$node->safe_psql($db, join(";\n",
			qq(CREATE SCHEMA IF NOT EXISTS $schema),
			qq(CREATE EXTENSION idempotency SCHEMA $schema VERSION ') . OLD . q('),
			qq(SET search_path = $schema),
			(map { "ALTER TABLE $_ DISABLE TRIGGER ALL" } qw(idem_key_0 idem_key_1 idem_key_2 stock_log stock_item)),
			slurp_file("$upgrade/data-" . OLD . '.sql'),
			qq(UPDATE outbox_subscription SET url = replace(url, 'http://127.0.0.1:1', '$url')),
			$afterwards), extra_params => [ '-U', 'keeper' ]);
	return;
}

$node->start;
sql('CREATE ROLE keeper SUPERUSER LOGIN');
sql('CREATE ROLE shop_app LOGIN');
sql('CREATE ROLE auditor');
# Transactions that the data knows as past must be past here, too.
sql('DO $$ BEGIN WHILE pg_current_xact_id()::text::bigint <= ' . OLD_XID . ' LOOP COMMIT; END LOOP; END $$');
my %trigger_of = ((map { $_ => ['idem_key_redirect'] } qw(idem_key_0 idem_key_1 idem_key_2)),
	map { $_ => [qw(stock_guard stock_guard_truncate)] } qw(stock_log stock_item));
my $as_made = join(";\n", map { my $table = $_; map { "ALTER TABLE $table ENABLE ALWAYS TRIGGER $_" } @{ $trigger_of{$table} } } sort keys %trigger_of);
create_old('postgres', 'public', $as_made);
sql(q(
	SELECT idempotency_grant('shop_app');
	GRANT SELECT ON outbox_subscriptions TO auditor;
	GRANT EXECUTE ON FUNCTION idem_sample(smallint, integer) TO auditor;
	CREATE VIEW lag AS SELECT name, lag FROM outbox_subscriptions));
# As pg_restore --disable-triggers leaves triggers, and as they are during it.
create_old('elsewhere', '"Odd schema"', q(
	ALTER TABLE stock_log ENABLE TRIGGER ALL;
	ALTER TABLE stock_item ENABLE TRIGGER ALL;
	ALTER TABLE idem_key_0 ENABLE TRIGGER ALL;
	ALTER TABLE outbox_attempt ADD CONSTRAINT by_hand PRIMARY KEY (subscription, position, attempt, at)));
create_old('taken', 'public', "$as_made; CREATE SCHEMA " . INTERNAL . '; CREATE TABLE ' . INTERNAL . '.idem_ring (mine text)');
create_old('differs', 'public', "$as_made; UPDATE stock_hold SET quantity = quantity + 1 WHERE sku = 'kept'");
sql('CREATE DATABASE dropped');
$node->safe_psql('dropped', "CREATE EXTENSION idempotency VERSION '" . OLD . "'");
my $before = sql(fingerprint('public', 'public', 'generation AS segment'));
# The files of tables that can be large: an upgrade must not write them again.
my $files = q(SELECT string_agg(relname || ' ' || pg_relation_filenode(oid), ', ' ORDER BY relname) FROM pg_class
	WHERE relname ~ '^stock_(log|hold|history_\d)$');
my $files_elsewhere = $node->safe_psql('elsewhere', $files);
is(scalar(my @parts = $before =~ /^\w+: \d+ \w+$/mg), 17, 'the data is about all subjects');
unlike($before, qr/: 0 /, 'and each has something to lose');
my $before_elsewhere = $node->safe_psql('elsewhere', fingerprint('"Odd schema"', '"Odd schema"'));
# A second row of a key, in an earlier state.
$node->safe_psql('elsewhere', q(INSERT INTO "Odd schema".idem_key_2 VALUES (6, now() + '1 day', 1, 'p', 'kept', 'old 1', now())));
my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';

# --- the new library, the old objects

my $offset = -s $node->logfile;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->restart;
for my $db (qw(differs dropped elsewhere postgres taken))
{
	$node->wait_for_log(qr/WARNING: .*database "$db" has version 0\.2\.0 of extension idempotency.*\n.*\n.*HINT: .*ALTER EXTENSION idempotency UPDATE/, $offset);
}
my $workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^idempotency (relay|sweeper)'";

my %refused = (
	idem_claim => [q('new', 'kept'), q('leased', 'kept', lease => '1 h')],
	idem_claim_many => [q('{new,answered}', 'kept')],
	idem_complete => [q('leased', 20, '{}', 'kept')],
	idem_fail => [q('leased', 20, '{}', 'kept')],
	idem_renew => [q('leased', 20, scope => 'kept')],
	idem_forget => [q('answered', 'kept')],
	outbox_enqueue => [q('shop', '{}')],
	outbox_subscribe => [q('new', 'http://127.0.0.1:1/')],
	outbox_alter => [q('shop', topics => '{none}')],
	outbox_unsubscribe => [q('shop')],
	outbox_pause => [q('shop')],
	outbox_resume => [q('lanes')],
	outbox_redrive => [q('dead')],
	outbox_replay => [q('shop', 1)],
	outbox_rotate_secret => [q('shop')],
	outbox_adopt => [''],
	stock_lines => [q('{"hat": 1}')],
	stock_receive => [q('hat', 1)],
	stock_adjust => [q('hat', -1, 'lost')],
	stock_reserve => [q('hat', 1, 'new'), q(ARRAY[('hat', 1)::stock_line], 'new')],
	stock_confirm => [q('in part')],
	stock_cancel => [q('in part')],
	stock_extend => [q('in part')],
	stock_reinstate => [q('kept 11')],
	stock_verify => ['']);
# These functions call nothing in the library that needs a table.
my %works = (
	outbox_topic_matches => q('{a*}', 'abc'),
	outbox_secret_generate => '',
	outbox_signature => q('whsec_VGhpcyBpcyBubyBzZWNyZXQsIGJ1dCBwYXJ0IG9mIGEgdGVzdC4=', 'msg_1', 1, '{}'),
	outbox_discard => q('dead', '{}'),
	stock_level => q('kept'),
	idempotency_grant => q('shop_app'),
	idempotency_grant_operator => q('auditor'));
is(sql(q(SELECT string_agg(DISTINCT p.proname, ' ' ORDER BY p.proname) FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	WHERE obj_description(p.oid, 'pg_proc') NOT LIKE 'Internal:%')), join(' ', sort keys %refused, keys %works),
	'all public functions are called here');
for my $function (sort keys %refused)
{
	for my $arguments (@{ $refused{$function} })
	{
		my ($code, $stdout, $stderr) = $node->psql('postgres', "SELECT $function($arguments)", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
		like($stderr, qr/ERROR: +55000: .*^HINT: .*ALTER EXTENSION idempotency UPDATE/ms, "$function($arguments) is refused");
	}
}
is(error_code($node, 'taken', "SELECT idem_claim('new')"), '55000', 'also where somebody else has a schema of that name');
for my $statement (q(INSERT INTO idem_key_1 VALUES (1, now() + '1 h', 1, 'c', '', 'by hand')),
	q(INSERT INTO outbox_log (topic, payload) VALUES ('shop', '{}')),
	q(UPDATE stock_item SET received = 1), q(TRUNCATE stock_log),
	q(ALTER TABLE stock_log DISABLE TRIGGER ALL), q(SELECT * FROM idem_stats))
{
	is(error_code($node, 'postgres', $statement), '55000', "and so is $statement");
}
is(error_code($node, 'postgres', "BEGIN; SELECT $_($works{$_}); ROLLBACK"), '', "$_ works") for sort keys %works;
is(sql('SELECT count(*) FROM outbox_subscriptions JOIN lag USING (name)'), 5, 'so do views');
is(error_code($node, 'postgres', 'CREATE TABLE own (a int); ALTER TABLE own DISABLE TRIGGER ALL; DROP TABLE own'), '',
	'what is not of the extension is left alone');
is(error_code($node, 'dropped', 'DROP EXTENSION idempotency'), '', 'it can be dropped');
is(sql(fingerprint('public', 'public', 'generation AS segment')), $before, 'nothing has changed by all that');
is(sql($workers), 0, 'there are no workers');
my $complaint = qr/WARNING: .*too old for the library/;
is(scalar(grep { /$complaint/ } complaints($offset)), 5, 'and one line in the log for each database says why');

# --- ALTER EXTENSION UPDATE under load

# Clients that call functions again and again, and record the answers.
sql(q(
	CREATE TABLE told (client int, try int, what text, code text, message text);
	CREATE TABLE stop ();
	CREATE PROCEDURE try(client int) LANGUAGE plpgsql AS $$
	DECLARE
		n int := 0;
		code text;
		message text;
		level bigint;
	BEGIN
		WHILE NOT EXISTS (SELECT FROM stop) LOOP
			n := n + 1;
			FOR i IN 1..4 LOOP
				code := ''; message := '';
				BEGIN
					CASE i
						WHEN 1 THEN PERFORM idem_claim(gen_random_uuid()::text);
						WHEN 2 THEN PERFORM outbox_enqueue('load', '{}', key => 'k');
						WHEN 3 THEN PERFORM stock_reserve('hat', 1, client || 'x' || n); PERFORM stock_cancel(client || 'x' || n);
						WHEN 4 THEN SELECT l.available INTO level FROM stock_level('kept') l;
							message := level;
					END CASE;
				EXCEPTION WHEN OTHERS THEN
					code := SQLSTATE; message := SQLERRM;
				END;
				INSERT INTO told VALUES (client, n, (ARRAY['claim', 'enqueue', 'stock', 'level'])[i], code, message);
				COMMIT;
			END LOOP;
		END LOOP;
	END $$;
	GRANT ALL ON told, stop TO shop_app));
my @clients = map { IPC::Run::start([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-U', 'shop_app', '-c', "CALL try($_)", $node->connstr('postgres') ],
		'>', \my $ignored, '2>&1') } 1 .. 3;
my $session = session($node);
my $in_session = q(SELECT outcome FROM idem_claim(gen_random_uuid()::text); SELECT outbox_enqueue('x', '{}') > 0; SELECT stock_receive('cap', 1) > 0; SELECT outbox_alter('dead', topics => '{dead}'));
$session->query($in_session);
my $told = q(SELECT count(DISTINCT client) FROM told WHERE what = '%s' AND code = '%s');
wait_until($node, sprintf("SELECT ($told) = 3", $_, '55000'), "clients try: $_") for qw(claim enqueue stock);

$offset = -s $node->logfile;
is(sql(q(BEGIN; ALTER EXTENSION idempotency UPDATE; DO $$ BEGIN PERFORM idempotency_grant('shop_app'); END $$; ) . fingerprint(INTERNAL, 'public', 'segment') . '; COMMIT'), $before,
	'all data is there after the update');
wait_for_workers($node);
subscribe($node, $receiver, "/ok/$_", topics => "'{$_}'") for qw(works load);
$receiver->wait_for('load', requests => 20);
wait_until($node, sprintf("SELECT ($told) = 3", $_, ''), "clients go on: $_") for qw(claim enqueue stock);
sql('INSERT INTO stop DEFAULT VALUES');
ok((grep { $_->finish } @clients) == 3, 'none of them was interrupted');
is(sql(q(SELECT DISTINCT what, code, CASE WHEN code <> '55000' THEN message END FROM told WHERE code <> '' ORDER BY 1, 2)),
	"claim|55000|\nenqueue|55000|\nstock|55000|", 'before it they were told to wait, and nothing else');
is(sql(q(SELECT count(*) FROM told t WHERE code <> '' AND EXISTS (SELECT FROM told e WHERE e.client = t.client AND e.try < t.try AND e.code = '' AND e.what <> 'level'))), 0,
	'and after it no more');
is(sql(q(SELECT DISTINCT message FROM told WHERE what = 'level')), sql(q(SELECT available FROM stock_level('kept'))), 'what needs no library answers all the time');
sql('DROP TABLE told, stop; DROP PROCEDURE try');
everything_works('after the update');
like($session->query($in_session), qr/^claimed\nt\nt\n*$/, 'a session that was there before goes on');
$session->quit;

# --- the data can be used

is(sql(q(
	SELECT outcome, response FROM idem_claim('answered', 'kept');
	SELECT outcome, response FROM idem_claim('forbidden', 'kept');
	SELECT outcome, attempt FROM idem_claim('again', 'kept');
	SELECT outcome FROM idem_claim('old 1', 'kept', request => 'request 1');
	SELECT outcome FROM idem_claim('old 1', 'kept', request => 'another');
	SELECT outcome FROM idem_claim('leased long ago', 'kept', lease => '1 h', request => 'r');
	SELECT outcome FROM idem_claim_many('{new 1,own,gone 1}', 'kept');
	SELECT idem_complete('leased', 20, '{"order": 18}', 'kept');
	SELECT outcome, response FROM idem_claim('leased', 'kept'))),
	join("\n", 'completed|{"order": 17}', 'failed|{"error": "no such card"}', 'claimed|2', qw(completed mismatch in_progress completed completed claimed), '', 'completed|{"order": 18}'),
	'keys are remembered, and owners still own them');

my $new_secret = 'whsec_VGhpcyBpcyB0aGUgb3RoZXIgc2VjcmV0IG9mIGEgdGVzdC4=';
$receiver->set_secret('shop', $new_secret);
is(sql(q(SELECT outbox_redrive('dead'))), 4, 'dead letters are redriven');
sql(q(SELECT outbox_resume('lanes')));
sql('UPDATE ' . INTERNAL . q(.outbox_delivery SET due_at = clock_timestamp() WHERE state = 'waiting'));
sql('SELECT ' . INTERNAL . '.outbox_wake()');
$receiver->wait_for(@$_) for [ 'dead', events => 4 ], [ 'shop', events => 4 ], [ 'lanes', events => 10 ], [ 'later', events => 2 ];
is($receiver->sorted_numbers('dead'), '1 2 3 4', 'and delivered');
is($receiver->numbers('shop') =~ s/ ?7//r =~ s/^ //r, '4 5 6', 'what waited, with what was parked behind it in order');
is($receiver->sorted_numbers('shop'), '4 5 6 7', 'and nothing twice');
is($receiver->sorted_numbers('lanes'), '5 6 7 8 9 16 17 18 19 20', 'what was passed, and what was not read');
is($receiver->sorted_numbers('later'), '1 2', 'what was to be sent later');
my ($request) = $receiver->requests('shop');
ok($request->{verified}, 'events are signed with the secret that was kept');
like($request->{headers}{'webhook-signature'}, qr/^v1,\S+ v1,\S+$/, 'and with the old one');
is($request->{headers}{'x-shop'}, '42', 'and have the headers that were kept');
is(sql(q(SELECT state FROM outbox_subscriptions WHERE name = 'closed')), 'disabled', 'what was disabled is');

is(sql(q(
	SELECT stock_confirm('kept 1'), stock_cancel('kept 11'), stock_cancel('more 1');
	SELECT stock_confirm('kept 15'), stock_cancel('last 1'), stock_confirm('kept 14');
	SELECT stock_confirm('in part');
	SELECT stock_cancel('in part, cancelled');
	SELECT stock_confirm('lapsed'))),
	join("\n", 'already_confirmed|already_cancelled|already_cancelled', 'done|done|done', 'done', 'done', 'expired'), 'reservations go on as they were');
is(sql(q(SELECT received, adjusted, confirmed, available, reserved FROM stock_levels WHERE sku = 'kept')), '100|0|14|67|19', 'and stock is what it has to be');
is(sql(q(SELECT count(*) FROM stock_verify() WHERE NOT ok)), 0, 'by all its records');
everything_works('with the data used');
sql(q(SELECT idempotency_grant('shop_app')));
is(join("\n", grep { !/$complaint/ } complaints($offset)), '', 'nothing in the log complains');

# --- in another schema

# A session that has locked one of the tables, and then another.
my $reader = session($node, 'elsewhere');
$reader->query_safe('BEGIN; SELECT count(*) FROM "Odd schema".outbox_home');
my $update = IPC::Run::start([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-c', 'ALTER EXTENSION idempotency UPDATE',
		$node->connstr('elsewhere') ], '>', \my $output, '2>&1');
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'ALTER EXTENSION%' AND wait_event IN ('relation', 'PgSleep')");
$reader->query_safe('SELECT count(*) FROM "Odd schema".outbox_subscription; COMMIT');
$reader->quit;
ok($update->finish, 'an update and a reader do not deadlock') || diag($output);
is($node->safe_psql('elsewhere', q(SELECT string_agg(DISTINCT tgenabled::text, '') FROM pg_trigger WHERE tgname ~ '^(idem_key_redirect|stock_guard)')), 'A',
	'triggers fire always again');
is($node->safe_psql('elsewhere', q(SET search_path = "Odd schema"; SELECT outcome FROM idem_claim_many('{answered,old 1,own}', 'kept'))), "completed\ncompleted\ncompleted",
	'keys that came past them are remembered, each in one row');
wait_for_workers($node, 'elsewhere');
is($node->safe_psql('elsewhere', 'SELECT count(*) FROM "Odd schema".stock_verify() WHERE NOT ok'), 0, 'stock is right');
is($node->safe_psql('elsewhere', fingerprint(INTERNAL, '"Odd schema"')), $before_elsewhere, 'data is what it was');
is($node->safe_psql('elsewhere', $files), $files_elsewhere, 'in the same files');

# --- another schema with the internal name exists

my $was = $node->safe_psql('taken', fingerprint('public', 'public', 'generation AS segment'));
my $catalog = catalog($node, 'taken');
is(error_code($node, 'taken', 'ALTER EXTENSION idempotency UPDATE'), '42P06', 'an update fails where there is a schema of that name');
same_catalog(catalog($node, 'taken'), $catalog, 'and changes no object', 'Those are the differences:');
is($node->safe_psql('taken', fingerprint('public', 'public', 'generation AS segment')), $was, 'nor any data');
$node->safe_psql('taken', 'ALTER SCHEMA ' . INTERNAL . ' RENAME TO mine; ALTER EXTENSION idempotency UPDATE');
is($node->safe_psql('taken', 'SELECT outcome FROM idem_claim(\'answered\', \'kept\'); SELECT count(*) FROM mine.idem_ring'), "completed\n0", 'with another name of that it succeeds');

# --- reservations that the log and the holds know differently

$was = $node->safe_psql('differs', fingerprint('public', 'public', 'generation AS segment'));
$catalog = catalog($node, 'differs');
my ($status, undef, $message) = $node->psql('differs', "\\set VERBOSITY verbose\nALTER EXTENSION idempotency UPDATE");
like($message, qr/55000: reservations of item "kept" differ in stock_log and stock_hold.*HINT: .*stock_verify/s, 'an update fails');
same_catalog(catalog($node, 'differs'), $catalog, 'and changes no object', 'Those are the differences:');
is($node->safe_psql('differs', fingerprint('public', 'public', 'generation AS segment')), $was, 'nor any data');
$node->safe_psql('differs', "UPDATE stock_hold SET quantity = quantity - 1 WHERE sku = 'kept'; ALTER EXTENSION idempotency UPDATE");
is($node->safe_psql('differs', 'SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'corrected, it succeeds');

# --- the same as a fresh install

sql('CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE EXTENSION idempotency', extra_params => [ '-U', 'keeper' ]);
$node->safe_psql('fresh', q(
	SELECT idempotency_grant('shop_app');
	GRANT SELECT ON outbox_subscriptions TO auditor;
	GRANT EXECUTE ON FUNCTION idempotency_internal.idem_sample(smallint, integer) TO auditor;
	CREATE VIEW lag AS SELECT name, lag FROM outbox_subscriptions));
sql('CREATE DATABASE fresh_elsewhere');
$node->safe_psql('fresh_elsewhere', 'CREATE SCHEMA "Odd schema"; CREATE EXTENSION idempotency SCHEMA "Odd schema"',
	extra_params => [ '-U', 'keeper' ]);
my $upgraded = catalog($node, 'postgres');
cmp_ok(scalar(keys %$upgraded), '>', 500, 'the catalog of the extension has many entries');
same_catalog($upgraded, catalog($node, 'fresh'), 'an upgraded database has what a fresh one has', HINT);
same_catalog(catalog($node, 'elsewhere'), catalog($node, 'fresh_elsewhere'), 'in another schema, too', HINT);

# --- dump and restore

wait_until($node, q(SELECT count(*) = 0 FROM outbox_subscriptions WHERE state = 'active' AND lag_events + in_flight + waiting > 0), 'all is delivered');
command_ok([ 'pg_dump', '-Fc', '-f', $file, $node->connstr('postgres') ], 'pg_dump of the upgraded database');
my $now = sql(fingerprint(INTERNAL, 'public'));
sql('CREATE DATABASE restored');
command_ok([ 'pg_restore', '--exit-on-error', '-U', 'keeper', '-d', $node->connstr('restored'), $file ], 'pg_restore');
is($node->safe_psql('restored', fingerprint(INTERNAL, 'public')), $now, 'all of it is there');
same_catalog(catalog($node, 'restored'), $upgraded, 'and its catalog is the same', HINT);

# --- there is no downgrade

for my $version (OLD, '9.9', 'none')
{
	my ($code, $stdout, $stderr) = $node->psql('postgres', "ALTER EXTENSION idempotency UPDATE TO '$version'");
	like($stderr, qr/ERROR: +extension "idempotency" has no update path from version "[\d.]+" to version "\Q$version\E"/,
		"there is no way to $version, and the server says so");
}
everything_works('nothing has changed by that');

# --- the version is in several files

my $version = sql("SELECT extversion FROM pg_extension WHERE extname = 'idempotency'");
my %said = (
	'META.json' => qr/"version": "(.*?)"/,
	'CHANGELOG.md' => qr/^## \[?([\d.]+)/m,
	'debian/changelog' => qr/^idempotency \(([\d.]+)/,
	'packaging/idempotency.spec' => qr/^Version: +([\d.]+)$/m,
	'docs/reference/README.md' => qr/^Version ([\d.]*\d)/m,
	'docs/reference/delivery.md' => qr/^User-Agent: idempotency\/(.*)$/m);
for my $file (sort keys %said)
{
	my ($there) = slurp_file("$FindBin::RealBin/../../../$file") =~ $said{$file};
	is($there, $version, "$file is about this version");
}
my ($provided) = slurp_file("$FindBin::RealBin/../../../META.json") =~ /"provides".*?"version": "(.*?)"/s;
is($provided, $version, 'and provides it');
is((($receiver->requests('works'))[-1]{headers}{'user-agent'}), "idempotency/$version", 'receivers are told as well');

done_testing();
