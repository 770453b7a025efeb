# A restore takes hours, and the sweeper works meanwhile: between any two steps
# of a restore, in any order of the tables, with the time between them as long
# as any retention.  If this fails, a copy loses events that were not delivered,
# or forgets in the wrong order how reservations ended: one is confirmed twice.
#
# The rings of the original have wrapped.  SEED repeats an order.

use strict;
use warnings FATAL => 'all';

use FindBin;
use List::Util qw(shuffle);
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);

my $node = new_server('restore_steps', conf => "idempotency.sweep_interval = '10ms'\nautovacuum = off\nfsync = off");
my $dumps = PostgreSQL::Test::Utils::tempdir();
$node->start;

sub time_passes
{
	my ($days) = @_;
	return join('; ', map {
		"UPDATE idempotency_internal.$_ SET opened_at = opened_at - interval '$days days', closed_at = closed_at - interval '$days days'"
	} qw(idem_ring outbox_ring outbox_history_ring stock_ring));
}

# Waits until the sweeper has taken each of its steps, so many times.
sub sweeps
{
	my ($sweeps) = @_;
	return q(
		DO $$
		DECLARE
			seen    timestamptz := clock_timestamp();
			success timestamptz;
		BEGIN
			FOR sweep IN 1..) . $sweeps . q( LOOP
				LOOP
					SELECT last_success_at INTO success FROM idempotency_internal.idempotency_workers() WHERE kind = 'sweeper';
					EXIT WHEN success > seen;
					ASSERT clock_timestamp() < seen + interval '1 min', 'the sweeper does not work';
					PERFORM pg_sleep(0.005);
				END LOOP;
				seen := clock_timestamp();
				COMMIT;
			END LOOP;
		END $$);
}

# --- the original, where no worker runs

sql('CREATE DATABASE shop IS_TEMPLATE true');
sql(q(
	CREATE EXTENSION idempotency;
	SELECT outbox_subscribe('reader', NULL);
	SELECT outbox_enqueue('t', to_jsonb(n), key => 'k') FROM generate_series(1, 10) n;
	SELECT outbox_ack('reader', max(token)) FROM outbox_fetch('reader', 10);
	SELECT outbox_switch();
	SELECT outbox_enqueue('t', to_jsonb(n), key => 'k') FROM generate_series(11, 20) n;
	SELECT outbox_ack('reader', max(token)) FROM outbox_fetch('reader', 4);
	SELECT outbox_switch();
	SELECT outbox_retire();
	SELECT outbox_enqueue('t', to_jsonb(n), key => 'k') FROM generate_series(21, 30) n;
	SELECT outbox_truncate();
	SELECT outbox_switch();
	SELECT outbox_enqueue('t', to_jsonb(n), key => 'k') FROM generate_series(31, 40) n;
	INSERT INTO outbox_delivery (subscription, position, partition, state, blocks_key, attempts, last_at, created_at, topic, payload)
	SELECT id, 1, 0, 'dead', false, 1, now() - interval '99 days', now() - interval '99 days', 't', '1' FROM outbox_subscription;
	CREATE PROCEDURE next_table() LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM stock_receive('hat', 1), stock_compact_item('hat', 100000);
		PERFORM idempotency_ring_switch('stock_ring');
	END $$;
	SELECT stock_receive('hat', 10), stock_receive('cap', 10);
	CALL next_table();
	CALL next_table();
	SELECT stock_reserve('hat', 3, 'order', ttl => '1 h');
	UPDATE stock_hold SET expires_at = now() - interval '1 min';
	SELECT stock_expire();
	UPDATE stock_ring SET state = 'retired' WHERE slot = 0;
	SELECT idempotency_ring_truncate('stock_ring', 'stock_history');
	CALL next_table();
	SELECT stock_reinstate('order', '1 h'), stock_confirm('order');
	SELECT stock_receive('hat', 1), stock_compact_item('hat', 100000);
	SELECT stock_reserve('cap', 1, 'late'), stock_cancel('late'), stock_reinstate('late'), stock_reserve('cap', 1, 'open', ttl => '30 days');
	UPDATE stock_hold SET expires_at = now() - interval '1 min' WHERE reservation = 'late';
	SELECT idem_claim('a'), idem_switch(), idem_claim('b'), idem_switch(), idem_claim('c')), 'shop');
is(sql(q(SELECT string_agg(r.state, ' ' ORDER BY r.slot), string_agg(s.state, ' ' ORDER BY s.slot) FROM outbox_ring r JOIN stock_ring s USING (slot)), 'shop'),
	'current old old|current old old', 'the rings of the original have wrapped');
is(sql(q(SELECT string_agg(change::text, ' ' ORDER BY id) FROM stock_history_0 WHERE reservation = 'order'), 'shop'),
	'reinstate confirm', 'the newest rows of the history are in its first table');
is(sql(q(SELECT change FROM stock_history_2 WHERE reservation = 'order'), 'shop'), 'expire', 'and older ones in the last one');
my $drawn = sql('SELECT last_value FROM stock_log_id_seq', 'shop');
command_ok([ 'pg_dump', '-Fd', '-f', "$dumps/d", $node->connstr('shop') ], 'pg_dump');

# --- restores, one step after the other

IPC::Run::run([ 'pg_restore', '-l', "$dumps/d" ], '>', \my $list) or die 'pg_restore -l';
my @before = grep { /^\d/ && !/ (?:TABLE DATA|SEQUENCE SET) / } split(/^/, $list);
my @tables = grep { / TABLE DATA / } split(/^/, $list);
my @sequences = grep { / SEQUENCE SET / } split(/^/, $list);
is(@sequences, 4, 'the dump has all sequences');

sub restore
{
	my ($db, @entries) = @_;
	my $file = "$dumps/list";
	unlink $file;
	append_to_file($file, join('', @entries));
	return system_or_bail('pg_restore', '--exit-on-error', '-L', $file, '-d', $node->connstr($db), "$dumps/d");
}

# What the copy has kept: as soon as it is whole, and then after each table of
# the rings could be dropped.
sub check_copy
{
	my ($db, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->safe_psql($db, sweeps(2));
	is($node->safe_psql($db, q(SELECT "check", detail FROM idempotency_status() WHERE state <> 'ok' AND "check" !~ 'subscription|worker errors')),
		'', "$what: the copy is whole");
	is($node->safe_psql($db, q(SELECT string_agg(worker.last_error, ', ') FROM idempotency_internal.idempotency_workers() worker WHERE kind = 'sweeper')),
		'', "$what: no step has failed");
	is($node->safe_psql($db, 'SELECT count(*) FROM outbox_dead; SELECT outbox_adopt(true)'), "1\n", "$what: no dead letter is deleted before it is adopted");
	is($node->safe_psql($db, q(SELECT count(*), min(position) FROM outbox_log; SELECT string_agg(payload #>> '{}', ' ' ORDER BY position) FROM outbox_fetch('reader', 99);
		SELECT lost FROM outbox_subscriptions)),
		"30|11\n" . join(' ', 15 .. 40) . "\n0", "$what: no event is lost");
	is($node->safe_psql($db, q(SELECT string_agg(format('%s %s', key, (idem_claim(key)).outcome), ', ' ORDER BY key) FROM (VALUES ('a'), ('b'), ('c')) k(key))),
		'a completed, b completed, c completed', "$what: no key is forgotten");
	is($node->safe_psql($db, qq(SELECT state, (SELECT count(*) FROM stock_history WHERE reservation = 'late' AND change = 'expire' AND id > $drawn)
		FROM stock_reservation_status('late'))), 'expired|1', "$what: what lapsed meanwhile has expired, with a number of its own");
	my %states = ($node->safe_psql($db, q(SELECT state FROM stock_reservation_status('order'))) => 1);
	for (1 .. 6)
	{
		$states{ $node->safe_psql($db, "SELECT stock_receive('hat', 1); SELECT stock_compact_item('hat', 100000);"
			  . time_passes(4) . ';' . sweeps(3) . q(; SELECT coalesce((SELECT state FROM stock_reservation_status('order')), 'forgotten'))) =~ s/.*\n//sr } = 1;
	}
	is(join(' ', sort keys %states), 'confirmed forgotten', "$what: an order that was confirmed stays so until it is forgotten");
	is($node->safe_psql($db, 'SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', "$what: stock is right");
	$node->safe_psql('postgres', "DROP DATABASE $db");
	return;
}

my %orders = (
	'as pg_restore does' => [ @tables, @sequences ],
	'backwards' => [ reverse(@tables), @sequences ],
	'shuffled' => [ shuffle(@tables), @sequences ]
);
for my $order (sort keys %orders)
{
	sql('CREATE DATABASE copy');
	restore('copy', @before);
	wait_for_workers($node, 'copy');
	for (@{ $orders{$order} })
	{
		restore('copy', $_);
		$node->safe_psql('copy', time_passes(9) . ';' . sweeps(2));
	}
	check_copy('copy', $order);
}

# --- restores at once, after which time passes before the copy is adopted

my %commands = (
	'pg_restore -j' => [ '-j', '3' ],
	'--section' => [ '--section=pre-data', '--section=data', '--section=post-data' ],
	'--data-only' => ['--data-only'],
	'--disable-triggers' => [ '--data-only', '--disable-triggers' ],
);
for my $command (sort keys %commands)
{
	my @options = @{ $commands{$command} };
	sql('CREATE DATABASE copy');
	$node->safe_psql('copy', 'CREATE EXTENSION idempotency; CREATE PROCEDURE next_table() LANGUAGE plpgsql AS $$ BEGIN END $$') if $options[0] eq '--data-only';
	for ($command eq '--section' ? map { [$_] } @options : [@options])
	{
		system_or_bail('pg_restore', '--exit-on-error', @$_, '-d', $node->connstr('copy'), "$dumps/d");
		next if $_->[0] =~ /pre-data|post-data/;
		wait_for_workers($node, 'copy');
		$node->safe_psql('copy', time_passes(9) . ';' . sweeps(4));
	}
	check_copy('copy', $command);
}

# --- a copy with its rings

sql('CREATE DATABASE copy TEMPLATE shop');
wait_for_workers($node, 'copy');
$node->safe_psql('copy', time_passes(2) . ';' . sweeps(4));
check_copy('copy', 'CREATE DATABASE TEMPLATE');

diag("failed with SEED=$seed") unless Test::More->builder->is_passing;
done_testing();
