# Transaction ids of 32 bits come to their end and begin again, or there are no
# more of them until old ones are removed.  If this fails, an event of a prepared
# transaction is skipped then, or a quantity is in use for ever.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant {
	XID_END => 2**32,
	XIDS_HALF => 2**31,
	XIDS_RESERVED => 3_000_000,    # the server keeps these for an administrator
	XIDS_OF_FILE => 2**20,         # of pg_xact, which has two bits for each
};

my $receiver = Receiver->start;
my $node = new_server('wraparound', conf => <<'EOF');
max_prepared_transactions = 3
idempotency.sweep_interval = 50ms
EOF

# Lets the server, which has stopped, begin with that transaction id, as if it
# had assigned those before.
sub start_at
{
	my ($next, @options) = @_;
	my $file = sprintf('%s/pg_xact/%04X', $node->data_dir, $next / XIDS_OF_FILE);

	append_to_file($file, "\0" x (XIDS_OF_FILE / 4 - (-s $file // 0)));
	system_or_bail('pg_resetwal', '--next-transaction-id', $next, @options, $node->data_dir);
	$node->start;
	return;
}

# Makes the server forget about old ones.
sub freeze
{
	return $node->command_ok([ qw(vacuumdb --all --freeze --quiet) ], 'all rows are frozen');
}

sub next_xid
{
	return sql('SELECT pg_snapshot_xmax(pg_current_snapshot())');
}

# These events, and no others, were sent in this order.  A stop of the server may
# repeat the last ones.
sub is_sent_to
{
	my ($name, $what, @numbers) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %seen;
	$receiver->wait_for($name, events => scalar @numbers);
	return is(join(' ', grep { !$seen{$_}++ } map { $_->{n} } $receiver->requests($name, 'data.n')), "@numbers", $what);
}

sub is_sent
{
	my ($what, @numbers) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sent_to('shop', $what, @numbers);
}

sub event
{
	my ($n) = @_;
	return qq(SELECT outbox_enqueue('t', '{"n": $n}'));
}

$node->start;
sql("UPDATE pg_database SET datallowconn = true WHERE datname = 'template0'");
for my $next (XIDS_HALF - 2 * XIDS_RESERVED, XID_END - 4 * XIDS_RESERVED)
{
	$node->stop;
	start_at($next);
	freeze();
}
$node->stop;
start_at(XID_END - 200, '--epoch=3');

# --- an epoch ends while a transaction is prepared

sql('CREATE EXTENSION idempotency');
sql("SELECT stock_receive('hat', 10)");
subscribe($node, $receiver, '/ok/shop', topics => "'{t}'");
sql('BEGIN; ' . event(1) . "; SELECT stock_reserve('hat', 4, 'before'); PREPARE TRANSACTION 'before'");
cmp_ok(next_xid(), '<', 4 * XID_END, 'a transaction is prepared in one epoch');
sql(event(2));
is_sent('an event behind it is sent', 2);
sql(join(';', ('SELECT pg_current_xact_id()') x 200));
cmp_ok(next_xid(), '>', 4 * XID_END, 'another epoch begins');
subscribe($node, $receiver, '/ok/late', topics => "'{t}'");
sql(event(3));
is_sent('an event of it is sent', 2, 3);
$node->restart;
sql(event(4) . "; SELECT stock_receive('hat', 1)");
is_sent('another one after a restart', 2, 3, 4);
is(sql("SELECT available, in_use FROM stock_counter('hat')"), '7|t', 'what is prepared is in use');
sql("COMMIT PREPARED 'before'");
is_sent('the event that was prepared is sent', 2, 3, 4, 1);
is_sent_to('late', 'also to who subscribed in the other epoch', 3, 4, 1);
is(sql("SELECT available, in_use FROM stock_counter('hat')"), '7|f', 'and its reservation is there');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

# --- one is prepared while the server assigns the last ones that it can

freeze();
my $last = next_xid() % XID_END + XIDS_HALF - XIDS_RESERVED;
$node->stop;
start_at($last - 200);
sql('BEGIN; ' . event(5) . "; SELECT stock_reserve('hat', 2, 'old'); PREPARE TRANSACTION 'old'");
sql(event(6));
is_sent('an event behind a prepared one is sent', 2, 3, 4, 1, 6);
is(error_code($node, 'postgres', join(';', ('SELECT pg_current_xact_id()') x 300)), '54000', 'the server assigns no more transaction ids');
is(error_code($node, 'postgres', event(7)), '54000', 'no event can be enqueued');
like(sql(q(SELECT state, detail, hint FROM idempotency_status() WHERE "check" = 'prepared transactions')),
	qr/^ok\|1, the oldest, 'old', /, 'the status says what is prepared');
is(sql("SELECT available, in_use FROM stock_counter('hat')"), '5|t', 'an item can still be read');
sql("COMMIT PREPARED 'old'");
wait_until($node, "SELECT NOT in_use FROM stock_counter('hat')", 'the prepared one can be committed');
freeze();
sql(event(8));
is_sent('then events are sent again', 2, 3, 4, 1, 6, 5, 8);
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

done_testing();
