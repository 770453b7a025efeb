# A session that has no memory left for another item of a large transaction can
# go on after the error, in a savepoint and in another transaction, and so can
# all others.  If this fails, what the transaction has taken is lost or counted
# twice, or memory is overwritten and the server restarts.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

# Items of one transaction.  A table of them is enlarged in between, or was so
# in an earlier version.
use constant ITEMS => ([ 8100, 8400 ], [ 12_000, 14_900 ], [ 16_300, 16_600 ]);

# What the session may still allocate, in kB: enough for the next items, not
# for a larger table.
use constant SPARE_KB => 300;

# Memory that is freed is not used again for a larger table.
$ENV{MALLOC_MMAP_THRESHOLD_} = 128 * 1024;
my $node = start_server('memory', conf => "idempotency.databases = none\nidempotency.stock_items = 20000\n");
my $session = session($node);
my $pid = $session->query('SELECT pg_backend_pid()');

sub limit_memory
{
	my ($kb) = @_;
	my $limit = 'unlimited';

	if (defined $kb)
	{
		my ($size_kb) = slurp_file("/proc/$pid/status") =~ /VmSize:\s+(\d+)/;
		$limit = 1024 * ($size_kb + $kb);
	}
	system_or_bail('prlimit', "--pid=$pid", "--as=$limit:unlimited");
	return;
}

sub receive
{
	my ($from, $to) = @_;
	return "SELECT count(stock_receive('item ' || n, 1)) FROM generate_series($from, $to) n";
}

# Counters that differ from the log.
sub wrong
{
	return sql(q(SELECT count(*) FROM stock_counters() c
		JOIN (SELECT sku, sum(quantity) AS quantity FROM stock_log GROUP BY sku) l USING (sku)
		WHERE c.available <> l.quantity OR c.in_use));
}

my $pieces = 0;
for (ITEMS)
{
	my ($from, $to) = @$_;
	my $more = receive($from + 1, $to);

	$session->query('BEGIN; ' . receive(1, $from) . '; SAVEPOINT s');
	limit_memory(SPARE_KB);
	note("from $from to $to: " . ($session->query($more) || $session->{stderr}));
	limit_memory();
	$session->{stderr} = '';
	$session->query('ROLLBACK TO s');
	is($session->query($more), $to - $from, "$to items: the transaction goes on");
	$session->query('COMMIT');
	$pieces += $to;
	is(sql('SELECT count(*) FROM stock_log'), $pieces, 'each piece is received once');
	is(wrong(), '0', 'and counted once');
}
is($session->query('SELECT pg_backend_pid()'), $pid, 'all that in one session');

done_testing();
