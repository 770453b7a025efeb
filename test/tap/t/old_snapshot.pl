# pg_dump, or the first copy of a logical replica, has a snapshot from before
# the rings turn, and reads our tables later.  If this fails, a key is claimed
# again after a restore, and an undelivered event is missing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $node = new_server('old_snapshot', allows_streaming => 'logical', conf => 'idempotency.sweep_interval = 50ms');
my $dumps = PostgreSQL::Test::Utils::tempdir();

$node->start;
sql('CREATE TABLE in_the_way (); CREATE EXTENSION idempotency');

# The rows that could be lost; the sweeper compacts the stock.
my $rows = 0;

sub add_rows
{
	my ($name) = @_;
	sql(qq(SELECT idem_complete('$name', token, '"answer"') FROM idem_claim('$name', lease => '1 h');
		SELECT outbox_enqueue('t', '{"name": "$name"}');
		SELECT stock_receive('$name', 10), stock_compact_item('$name', 10)));
	$rows++;
	return;
}

# Closes the segments that have the rows: a session that holds a lock has
# written as well, and would be waited for.
sub close_tables
{
	for my $switch ("idempotency_ring_switch('idem_ring')", 'outbox_switch()', "idempotency_ring_switch('stock_ring')")
	{
		$node->poll_query_until('postgres', "SELECT $switch");
	}
	return;
}

# Moves all rows out of their tables.
sub turn
{
	sql('SELECT idem_migrate()');
	sql('UPDATE outbox_partition SET position = (SELECT last_value FROM outbox_position_seq)');
	sql("UPDATE $_ SET closed_at = now() - interval '10 years' WHERE state = 'old'") for qw(outbox_ring stock_ring);
	$node->poll_query_until('postgres', "SELECT idem_retire() OR NOT EXISTS (SELECT FROM idem_ring WHERE state = 'old')");
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM $_ WHERE state = 'old')", "$_ has turned over") for qw(idem_ring outbox_ring stock_ring);
	sql('SELECT idem_truncate(), outbox_expire_log(), stock_forget()') for 1 .. 3;
	return;
}

sub is_complete
{
	my ($name, $db, $what) = @_;
	is($node->safe_psql($db, "SELECT outcome, response FROM idem_claim('$name')"), 'completed|"answer"', "$what: the key is completed");
	is($node->safe_psql($db, q(SELECT count(*) FROM outbox_log e, outbox_partition p WHERE e.position > p.position)), $rows,
		"$what: the events are to be delivered");
	is($node->safe_psql($db, "SELECT count(*) FROM stock_history WHERE sku = '$name'"), '1', "$what: and the history is there");
	is($node->safe_psql($db, "SELECT idem_expire(), (SELECT count(*) FROM stock_verify() WHERE NOT ok)"), 'f|0', "$what: it goes on");
	return;
}

sub all_is_emptied
{
	my ($what) = @_;
	wait_until($node, join(' UNION ALL ', map { "SELECT count(*) FILTER (WHERE state = 'retired') = 0 FROM $_" } qw(idem_ring outbox_ring stock_ring))
		  =~ s/^(.*)$/SELECT bool_and("?column?") FROM ($1) r/r, $what);
	return;
}

sql(q(SELECT outbox_subscribe('s', 'http://127.0.0.1:1/'); SELECT outbox_pause('s')));

# --- pg_dump waits for a lock

add_rows('dumped');
close_tables();
my $session = session($node);
$session->query_safe('BEGIN; LOCK TABLE in_the_way');
my $dump = IPC::Run::start([ 'pg_dump', '-Fc', '-f', "$dumps/dump", $node->connstr('postgres') ]);
wait_until($node, q(SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'LOCK TABLE%' AND wait_event_type = 'Lock'), 'pg_dump waits');
turn();
is(sql("SELECT outcome FROM idem_claim('meanwhile') UNION ALL SELECT outcome FROM idem_claim('dumped')"), "claimed\ncompleted", 'claims go on');
$session->query_safe('COMMIT');
ok($dump->finish, 'pg_dump');
sql('CREATE DATABASE dumped');
command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('dumped'), "$dumps/dump" ], 'pg_restore');
is_complete('dumped', 'dumped', 'pg_dump');
all_is_emptied('when it has ended the tables are emptied');

# --- a replication slot has exported its snapshot

sql('TRUNCATE stock_log, stock_item, stock_hold; SELECT outbox_replay($$s$$, from_position => 1); DROP DATABASE dumped');
$rows = 0;
sql('UPDATE outbox_partition SET position = (SELECT last_value FROM outbox_position_seq)');
add_rows('copied');
close_tables();
my $slot = $node->background_psql('postgres', extra_params => [ '-d', $node->connstr('postgres') . ' replication=database' ]);
my ($snapshot) = $slot->query_safe('CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT export)') =~ /\|([\w-]+)\|pgoutput/;
turn();
command_ok([ 'pg_dump', '-Fc', "--snapshot=$snapshot", '-f', "$dumps/copy", $node->connstr('postgres') ], 'pg_dump with its snapshot');
$slot->quit;
sql('CREATE DATABASE copied');
command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copied'), "$dumps/copy" ], 'pg_restore');
is_complete('copied', 'copied', 'slot');
all_is_emptied('when the slot has gone the tables are emptied');

$session->quit;
done_testing();
