# pg_restore --data-only --disable-triggers, into a database that is in use:
# rows come in without our triggers, which are ordinary triggers afterwards.
# If this fails, a remembered key is claimed again, or stock is sold twice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

use constant REFUSED => '55000';

my $node = start_server('disabled_triggers', conf => 'idempotency.sweep_interval = 100ms');
my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';

sub there
{
	return sql(shift, 'there');
}

# The session's answer, as soon as it is another than to wait; any other answer
# would be wrong.
sub answer
{
	my ($session, $sql) = @_;
	for (1 .. 600)
	{
		my $answer = $session->query("\\set VERBOSITY sqlstate\n$sql");
		my $refused = $session->{stderr} =~ /ERROR: +@{[REFUSED]}/;

		$session->{stderr} = '';
		return $answer unless $refused;
		select(undef, undef, undef, 0.1);
	}
	return 'refused for a minute';
}

# --- what is dumped, and what is there

sql(q(
	SELECT idem_complete('paid', token, '"paid"') FROM idem_claim('paid', lease => '1 h');
	SELECT idem_complete('both', token, '"dumped"') FROM idem_claim('both', lease => '1 h');
	SELECT idem_complete('expired', token, '"dumped"') FROM idem_claim('expired', lease => '1 h');
	SELECT idem_claim('forgotten', ttl => '1 us');
	SELECT stock_receive('hat', 10), stock_reserve('hat', 3, 'order-1', ttl => '1 h')));
sql('CREATE DATABASE there');
there(q(CREATE EXTENSION idempotency; SELECT idem_claim('own')));
$node->poll_query_until('there', 'SELECT idem_switch()');
my $session = session($node, 'there');
$session->query_safe(q(SELECT idem_complete('both', token, '"there"') FROM idem_claim('both', lease => '1 h');
	SELECT idem_claim('expired', ttl => '1 us');
	SELECT stock_receive('cup', 10), stock_reserve('cup', 1, 'mine'), stock_reserve('hat', 1, 'none')));
command_ok([ 'pg_dump', '-Fc', '-f', $file, $node->connstr('postgres') ], 'pg_dump');
command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', '-d', $node->connstr('there'), $file ],
	'pg_restore --data-only --disable-triggers');

# --- nothing uses the tables before they are repaired

is(answer($session, q(SELECT outcome, response FROM idem_claim('paid'))), 'completed|"paid"', 'a key that was restored is remembered');
is(answer($session, q(SELECT response FROM idem_claim('both'))), '"there"', 'of two that are equal the one that was there counts');
is(answer($session, q(SELECT response FROM idem_claim('expired'))), '"dumped"', 'unless it has expired');
is(answer($session, q(SELECT outcome FROM idem_claim('own'))), 'completed', 'what was there is remembered');
is(answer($session, q(SELECT outcome FROM idem_claim('forgotten'))), 'claimed', 'what has expired is not');
is(there('SELECT string_agg(key, $$ $$ ORDER BY key) FROM idem_key'), 'both expired forgotten own paid', 'no key is there twice');
is(answer($session, q(SELECT outcome FROM stock_reserve('hat', 8, 'order-2'))), 'insufficient', 'nobody gets more than there is,');
is(answer($session, q(SELECT outcome FROM stock_reserve('hat', 7, 'order-2'))), 'reserved', 'nor less');
is(there('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
is(there(q(SELECT count(*) FROM pg_trigger WHERE tgname ~ '^(idem_key_redirect|stock_guard)' AND tgenabled = 'A')), '14',
	'the triggers fire always again');

# --- two rows of a key: which of them counts, in any tables

# Each row: state and token (0: expired).  The one that counts comes first.
my @pairs = ([ 'c1', 'p1' ], [ 'f1', 'p1' ], [ 'c1', 'r1' ], [ 'f1', 'r1' ], [ 'r1', 'p1' ], [ 'p2', 'c1' ], [ 'r2', 'f1' ], [ 'p1', 'c0' ]);
my ($in_use, $aside) = split(/\|/, there(q(SELECT max('idem_key_' || slot) FILTER (WHERE state = 'current'),
	max('idem_key_' || slot) FILTER (WHERE state = 'old') FROM idem_ring)));
my $rows = join("\n", map { "ALTER TABLE $_ DISABLE TRIGGER ALL;" } $in_use, $aside);
for my $pair (@pairs)
{
	for my $turned (0, 1)
	{
		my @places = $turned ? ($aside, $in_use) : ($in_use, $aside);
		for my $i (0, 1)
		{
			my ($state, $token) = split(//, $pair->[$i]);
			my $expires = $token == 0 ? '- 1' : '+ 1';
			my $lease = $state eq 'p' ? "now() + interval '1 h'" : 'NULL';

			$rows .= "INSERT INTO $places[$i] VALUES (greatest($token, 1), now() $expires * interval '1 h', 1, '$state', 'pair', '@$pair $turned', $lease);\n";
		}
	}
}
there("BEGIN; $rows" . join("\n", map { "ALTER TABLE $_ ENABLE TRIGGER ALL;" } $in_use, $aside) . 'COMMIT; SELECT idempotency_repair()');
is(there(q(SELECT string_agg(key || ': ' || state::text || token, ', ' ORDER BY key) FROM idem_key WHERE scope = 'pair')),
	join(', ', sort map { my $pair = $_; map { "@$pair $_: $pair->[0]" } 0, 1 } @pairs), 'of two rows of a key the right one counts');
there(q(SELECT idem_forget(key, 'pair') FROM idem_key WHERE scope = 'pair'));

# --- so they do for a replica

there(q(SET session_replication_role = replica; UPDATE stock_item SET adjusted = adjusted - 5 WHERE sku = 'cup';
	INSERT INTO idem_key_2 VALUES (5, now() + '1 h', 1, 'c', '', 'replicated')));
is(answer($session, q(SELECT outcome FROM stock_reserve('cup', 5, 'order-3'))), 'insufficient', 'what a replica takes away nobody gets');
is(answer($session, q(SELECT outcome FROM idem_claim('replicated'))), 'completed', 'what it brings is remembered');
there(q(SET session_replication_role = replica; INSERT INTO stock_hold (quantity, expires_at, line, reservation, sku, lines)
	VALUES (2, now() + interval '1 h', 0, 'replicated', 'cup', 1)));
is(answer($session, q(SELECT outcome FROM stock_reserve('cup', 3, 'order-5'))), 'insufficient', 'what it reserves, too');
there(q(SET session_replication_role = replica; DELETE FROM stock_hold WHERE reservation = 'replicated'));
is(answer($session, q(SELECT outcome FROM stock_reserve('cup', 3, 'order-5'))), 'reserved', 'until it does not any more');
is(answer($session, q(SELECT stock_cancel('order-5'))), 'done', 'and again not');

# --- everything in one transaction, and an open one before it

there('TRUNCATE idem_key_0, idem_key_1, idem_key_2, stock_log, stock_hold, stock_item, outbox_home');
$session->query_safe(q(SELECT stock_receive('cup', 10); BEGIN; SELECT stock_reserve('cup', 1, 'mine'), stock_reserve('hat', 1, 'none')));
my $restore = IPC::Run::start([ 'pg_restore', '-1', '--data-only', '--disable-triggers', '-d', $node->connstr('there'), $file ]);
$node->poll_query_until('postgres', q(SELECT count(*) > 0 FROM pg_locks WHERE NOT granted));
$session->query_safe('COMMIT');
ok($restore->finish, 'pg_restore -1 waits for those who use stock');
is(answer($session, q(SELECT outcome FROM idem_claim('paid'))), 'completed', 'the key is remembered');
is(answer($session, q(SELECT outcome FROM stock_reserve('hat', 8, 'order-2'))), 'insufficient', 'and no stock is there that is not');
is(there('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

# --- disabled for long: more rows may come, so only the owner can repair

for my $case ([ 'idem_key_0', q(idem_claim('new')) ], [ 'stock_item', q(stock_reserve('cup', 1, 'new')) ], [ 'stock_log', q(stock_receive('jug', 1)) ], [ 'stock_queue', q(stock_receive('jug', 1)) ],
	[ 'stock_hold', q(stock_reserve('cup', 1, 'newer')) ], [ 'stock_history_1', q(stock_reserve('cup', 1, 'newest')) ])
{
	my ($table, $call) = @$case;
	my ($now) = there("ALTER TABLE $table DISABLE TRIGGER USER; SELECT clock_timestamp()") =~ /(.+)$/;

	$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = 'there'"
		  . " AND backend_type = 'idempotency sweeper' AND state = 'idle' AND query_start > '$now'");
	is(error_code($node, 'there', "SELECT $call"), REFUSED, "$table: refused");
	is($session->query("\\set VERBOSITY sqlstate\nSELECT $call") . ($session->{stderr} =~ s/ERROR: +(\w+)//r && $1), REFUSED,
		"$table: and in a session that has been there");
	$session->{stderr} = '';
	there('SELECT idempotency_repair()');
	isnt(answer($session, "SELECT $call"), '', "$table: until it is repaired");
}

# --- enabled again, as if they had not been disabled

there(q(ALTER TABLE stock_item DISABLE TRIGGER USER; UPDATE stock_item SET adjusted = adjusted - 8 WHERE sku = 'cup';
	ALTER TABLE stock_item ENABLE ALWAYS TRIGGER stock_guard; ALTER TABLE stock_item ENABLE ALWAYS TRIGGER stock_guard_truncate));
is(answer($session, q(SELECT outcome FROM stock_reserve('cup', 3, 'order-4'))), 'insufficient', 'the counters are right all the same');
is(there('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; COMMIT; SELECT idempotency_repair()'), "1\n", 'repair by hand, at any time');
is(error_code($node, 'there', 'BEGIN ISOLATION LEVEL REPEATABLE READ; ALTER TABLE stock_item DISABLE TRIGGER USER; SELECT idempotency_repair()'), '25001', 'but not with an old snapshot');

# --- dropped, or renamed

for my $case ([ 'DROP TRIGGER idem_key_redirect ON idem_key_0', q(idem_claim('dropped')) ],
	[ 'ALTER TRIGGER stock_guard ON stock_item RENAME TO other; DROP TRIGGER stock_guard_truncate ON stock_log', q(stock_receive('jug', 1)) ])
{
	my ($ddl, $call) = @$case;

	there($ddl);
	my ($code, $stdout, $stderr) = $node->psql('there', "SELECT $call");
	like($stderr, qr/trigger "\w+" of table "\w+" is missing/, "$ddl: refused");
	there('SELECT idempotency_repair()');
	isnt(there("SELECT $call"), '', "$ddl: until it is repaired");
}
is(there(q(SELECT count(*) FROM pg_trigger WHERE tgname ~ '^(idem_key_redirect|stock_guard)' AND tgenabled = 'A')), '14', 'the triggers are there again');
there('DROP TRIGGER other ON stock_item');

# --- the repair while a transaction stays open

$session->query_safe(q(BEGIN; SELECT idem_claim('held')));
is(there('SET lock_timeout = 1000; SELECT idempotency_repair()'), '', 'nobody waits where nothing is to be repaired');
there(q(SELECT 'idem_key_' || slot AS spare FROM idem_ring WHERE state <> 'current' ORDER BY state LIMIT 1 \gset
	ALTER TABLE :spare DISABLE TRIGGER ALL; ALTER TABLE :spare ENABLE TRIGGER ALL));
my $repair = IPC::Run::start([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-c', 'SELECT idempotency_repair()', $node->connstr('there') ]);
$node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'SELECT idempotency_repair()' AND wait_event IN ('relation', 'PgSleep')");
is($session->query("\\set VERBOSITY sqlstate\nSELECT idem_claim('next')") . ($session->{stderr} =~ s/ERROR: +(\w+)//r && $1), REFUSED,
	'who has claimed and claims again is refused, not in a deadlock');
$session->{stderr} = '';
$session->query_safe('ROLLBACK');
ok($repair->finish, 'and the repair goes on');

# --- sequences that a restore has set back

my $use = q(SELECT idem_claim('used ' || i), outbox_enqueue('used', '{}'), stock_receive('used', 1) FROM generate_series(1, 50) i;
	SELECT outbox_subscribe('used-' || i, 'http://localhost:1/') FROM generate_series(1, 5) i);
my $highest = q(SELECT max(token), (SELECT max(position) FROM outbox_log), (SELECT max(id) FROM stock_history),
	(SELECT max(id) FROM outbox_subscription) FROM idem_key);
my $sequences = join(', ', map { "(SELECT last_value FROM $_)" } qw(idem_token_seq outbox_position_seq stock_log_id_seq outbox_subscription_id_seq));

# Are these numbers larger than the others?
sub larger
{
	my ($numbers, $others) = @_;
	my @others = split(/\|/, $others);

	return join(' ', map { $_ > shift @others ? 'yes' : 'no' } split(/\|/, $numbers));
}

for my $options ([], ['--disable-triggers'])
{
	command_ok([ 'pg_dump', '-Fc', '-f', $file, $node->connstr('there') ], 'pg_dump before it is used');
	there($use);
	my $used = there($highest);
	IPC::Run::run([ 'pg_restore', '--data-only', @$options, '-d', $node->connstr('there'), $file ], '2>', \my $errors);
	is(larger($used, there("SELECT $sequences")), 'yes yes yes yes', "pg_restore --data-only @$options sets sequences back");
	isnt(answer($session, q(SELECT outcome FROM idem_claim('next'))), '', 'a key is claimed,');
	isnt(answer($session, q(SELECT outbox_enqueue('used', '{}'))), '', 'an event enqueued');
	isnt(answer($session, qq(SELECT stock_receive('used', 1), outcome FROM stock_reserve('used', 1, 'next @$options'))), '', 'and stock received');
	like(larger(there($highest), $used), qr/^yes yes yes/, 'and their numbers are new');
	there(q(SELECT outbox_unsubscribe(name) FROM outbox_subscription; SELECT idem_forget(key) FROM idem_key WHERE key ~ 'used|next';
		SELECT stock_cancel(reservation) FROM stock_hold));
}

# A restart forgets what was handed out.
there("$use; SELECT setval(s::regclass, 1) FROM unnest('{idem_token_seq,outbox_position_seq,stock_log_id_seq,outbox_subscription_id_seq}'::text[]) s");
my $used = there($highest);
$session->quit;
$node->restart;
there('SELECT idempotency_repair()');
is(there("SELECT $sequences"), $used, 'the repair sets the sequences to what was used');
there("SELECT setval('idem_token_seq', 1, false); DELETE FROM idem_key_0; DELETE FROM idem_key_1; DELETE FROM idem_key_2; SELECT idempotency_repair()");
is(there('SELECT last_value, is_called FROM idem_token_seq'), '1|f', 'where nothing has a number none is skipped');

done_testing();
