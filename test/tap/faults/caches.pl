# Hooks and public functions work while every cache of the catalogs is emptied at
# every moment at which it may be, and what was freed is overwritten
# (debug_discard_caches = 1, on the server of lib/asserts).  If this fails, code
# reads a relcache entry that it has not locked, or uses one over a look-up in a
# catalog, or has a cache of its own that is used before it is filled: another
# session's DDL then crashes the server.
#
# A call takes half a minute this way, since everything is looked up again at
# each step, and the files of regress would take hours.  So the statements of
# hooks are run, and some calls: EVERY=1 runs all, SEED repeats a choice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use List::Util qw(shuffle);
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

use constant SAMPLE => 3;

my $seed = $ENV{SEED} // int(rand(1 << 30));
srand($seed);

my $node = start_server('caches', conf => <<EOF);
idempotency.sweep_interval = 1h
idempotency.databases = 'none'
idempotency.outbox_events = on
idempotency.stock_events = on
max_prepared_transactions = 2
EOF

# What the calls need.
sql(q(
	CREATE TABLE own (n integer);
	CREATE FUNCTION own_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
	CREATE TRIGGER own BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION own_trigger();
	CREATE PROCEDURE ends(n integer) LANGUAGE plpgsql AS 'BEGIN ROLLBACK; END';
	CREATE ROLE anyone;
	SELECT outbox_subscribe('hook', 'http://127.0.0.1:1/', topics => '{none}');
	SELECT outbox_subscribe('reader', NULL, topics => '{read}', filter => '$.n > 0');
	SELECT outbox_subscribe('ended', NULL);
	SELECT outbox_topic('gone');
	SELECT count(outbox_enqueue('read', '{"n": 1}', key => 'k')) FROM generate_series(1, 3);
	SELECT stock_receive('hat', 100), stock_receive('cap', 100), stock_receive('scarce', 1);
	SELECT stock_reserve('hat', 1, name) FROM unnest('{confirmed,cancelled,extended,reinstated,changed}'::text[]) name;
	SELECT stock_cancel('reinstated'), stock_reserve('hat', 1, 'lapsed', ttl => '1 us');
	SELECT idem_claim(key, lease => '1 h') FROM unnest('{completed,failed,renewed,forgotten}'::text[]) key;
	SELECT count(*) FROM outbox_fetch('reader', 2);
	SELECT stock_reserve('scarce', 2, 'waiting', wait => true);
	SELECT idem_fence('fenced'), idem_fence('unfenced'), idem_fence('imported')));

my $own = q((SELECT token FROM idem_key WHERE key = '%s'));
my @calls = (
	q(idem_claim('new', lease => '1 h', request => 'r')),
	q(idem_claim_many('{a,b,new}')),
	sprintf(q(idem_complete('completed', %s, '{"a": 1}')), sprintf($own, 'completed')),
	sprintf(q(idem_fail('failed', %s, '{}')), sprintf($own, 'failed')),
	sprintf(q(idem_renew('renewed', %s, '2 h')), sprintf($own, 'renewed')),
	q(idem_erase('completed')),
	q(idem_forget('forgotten')),
	q(idem_fence('new')),
	q(idem_unfence('unfenced')),
	q(idem_export('fenced')),
	q(idem_import(jsonb_build_object('scope', 'imported', 'last_token', 1))),
	'CALL idem_wait(\'completed\', timeout => \'1 ms\')',
	q(outbox_enqueue('read', '{"n": 2}', key => 'k', headers => '{"a": "b"}')),
	q(outbox_enqueue('none', '{}', dedup_key => 'd', deliver_at => now() + interval '1 h')),
	q(outbox_cancel((SELECT max(position) FROM outbox_log))),
	q(outbox_event_id((SELECT max(position) FROM outbox_log))),
	q(outbox_subscribe('new', 'http://127.0.0.1:1/', filter => '$.n > 1')),
	q(outbox_alter('hook', headers => '{"x-a": "b"}')),
	q(outbox_pause('hook', 'why')),
	q(outbox_resume('hook')),
	q(outbox_ping('hook')),
	q(outbox_rotate_secret('hook')),
	q(outbox_rotate_key('hook')),
	q(outbox_public_key('hook')),
	q(outbox_fetch('reader', 2)),
	q(outbox_ack('reader', (SELECT max(token) FROM idempotency_internal.outbox_partition))),
	'CALL outbox_wait(\'reader\', timeout => \'1 ms\')',
	q(outbox_replay('reader', 0)),
	q(outbox_redrive('hook')),
	q(outbox_retry('hook')),
	q(outbox_discard('hook')),
	q(outbox_dead_page('hook')),
	q(outbox_erase('k')),
	q(outbox_acknowledge_lost('hook')),
	q(outbox_topic('new', description => 'x')),
	q(outbox_drop_topic('gone')),
	q(outbox_unsubscribe('ended')),
	q(outbox_adopt()),
	q(outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'msg_1', 1, '{}')),
	q(outbox_secret_generate()),
	q(outbox_key_generate()),
	q(outbox_topic_matches('{a.*}', 'a.b')),
	q(stock_receive('new', 1)),
	q(stock_adjust('hat', -1, 'note')),
	q(stock_backorder('cap', 1)),
	q(stock_transfer('hat', 'cap', 1)),
	q(stock_reserve('hat', 1, 'new')),
	q(stock_reserve('scarce', 2, 'waits', wait => true)),
	q(stock_reserve_many('{"hat": 1, "cap": 2}', 'many')),
	q(stock_change_many('changed', '{"hat": 3, "cap": 1}')),
	q(stock_confirm('confirmed')),
	q(stock_cancel('cancelled')),
	q(stock_extend('extended')),
	q(stock_reinstate('reinstated')),
	q(stock_reservation_status('changed')),
	q(stock_level('hat')),
	q(stock_position('waiting')),
	q(stock_verify('hat')),
	q(idempotency_status()),
	q(idempotency_stats_reset()),
	q(idempotency_repair()),
	map({ qq(idempotency_$_('anyone')) } qw(grant grant_reader grant_operator grant_admin)),
	# What the sweeper does in each database.
	map({ "idempotency_internal.$_(100)" } qw(idem_expire outbox_expire stock_settle_prepared stock_expire stock_serve
		stock_learn_names stock_compact stock_forget)));

# Statements that hooks look at.
my @statements = (
	'ALTER TABLE own DISABLE TRIGGER own',
	'CREATE TRIGGER other AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION own_trigger()',
	'ALTER TABLE idempotency_internal.stock_hold DISABLE TRIGGER USER',
	'ALTER TABLE idempotency_internal.stock_hold ENABLE TRIGGER USER',
	'CALL ends(1)');

# What fires our triggers, and prepared transactions.
my @others = (
	q(DELETE FROM idempotency_internal.stock_hold WHERE reservation = 'extended'),
	q(INSERT INTO outbox_log (topic, payload) VALUES ('none', '{}')),
	q(BEGIN; SELECT stock_reserve('hat', 1, 'prepared'); PREPARE TRANSACTION 'prepared'; COMMIT PREPARED 'prepared'));

my %called = map { /^(?:CALL )?(?:idempotency_internal\.)?(\w+)/ => 1 } @calls;
my @pool = (@others, map { /^CALL/ ? $_ : "SELECT * FROM $_ AS result" } @calls);
my @order = $ENV{EVERY} ? 0 .. $#pool : sort { $a <=> $b } (shuffle(0 .. $#pool))[ 0 .. SAMPLE - 1 ];
my @all = (@statements, @pool[@order]);

for my $statement (@all)
{
	my ($stdout, $stderr);
	my $status = $node->psql('postgres', "SET debug_discard_caches = 1; $statement", stdout => \$stdout, stderr => \$stderr);

	note("SEED=$seed") if $statement eq $all[0];
	is($status == 0 ? $stderr =~ s/^.*(?:NOTICE|HINT|DETAIL):.*\n?//mgr : $stderr, '', $statement);
	last if slurp_file($node->logfile) =~ /TRAP:|terminated by signal/;
	sql('SELECT idempotency_repair()') if $statement =~ /ENABLE TRIGGER/;	# they were ENABLE ALWAYS
}

is(sql(q(SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency'
	WHERE p.pronamespace <> 'idempotency_internal'::regnamespace AND NOT p.proname = ANY ('{) . join(',', sort keys %called) . q(}'))), '',
	'each public function is called here');
is(sql(q(SELECT count(*) FROM stock_verify() WHERE NOT ok)), 0, 'stock is right');
unlike(slurp_file($node->logfile), qr/TRAP:|terminated by signal|PANIC/, 'the server never crashed');

done_testing();
