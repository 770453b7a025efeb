# What docs/scale-out.md says of Citus: its commands, run as they stand there,
# and then orders that are placed while workers die and shards move.  If this
# fails, an order whose request was repeated is placed twice, or its event is
# lost, or a node of a cluster sends nothing.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use PostgreSQL::Test::Cluster;
use Program;
use Receiver;
use Server;
use Shoppers;
use Test::More;
use Time::HiRes qw(sleep);

my $recipes = "$FindBin::RealBin/../../../docs/recipes";
my $owner = getpwuid($<);
my $receiver = Receiver->start;

# As on the page, but on one machine.
sub citus_node
{
	my ($name) = @_;
	my $node = new_server($name, preload => 0, internal_path => 0, allows_streaming => 'logical', conf => <<EOF);
shared_preload_libraries = 'citus,idempotency'
max_connections = 100
max_prepared_transactions = 100
max_worker_processes = 24
listen_addresses = '127.0.0.1'
citus.node_conninfo = 'sslmode=prefer'
EOF
	$node->start;
	$node->safe_psql('postgres', 'CREATE DATABASE shop');
	$node->safe_psql('postgres', 'CREATE ROLE shop_app LOGIN');
	$node->safe_psql('shop', 'CREATE EXTENSION citus');
	return $node;
}

my $coordinator = citus_node('coordinator');
my @workers = map { citus_node("worker-$_") } 1, 2;
my %nodes = ('coordinator' => $coordinator, 'worker-1' => $workers[0], 'worker-2' => $workers[1]);

sub on_coordinator { return $coordinator->safe_psql('shop', $_[0]); }

# --- the page

my $page = Page->load('scale-out.md')->part('Citus');
$page->{text} =~ s/^## Two-phase.*//ms;
for my $block ($page->blocks('sql'))
{
	my ($line) = $block =~ /^ *(.*)/;
	my $sql = $block =~ s/'([\w-]+)\.example', 5432/"'127.0.0.1', " . $nodes{$1}->port/ger;
	my ($printed, $error) = Page::run($coordinator, 'shop', $sql);

	is($error =~ s/^.*NOTICE:.*\n//mgr, '', "runs: $line");
	ok(Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
}
ok(wait_for_workers($_, 'shop'), 'workers of the extension run on each node') for $coordinator, @workers;
subscribe($workers[$_], $receiver, "/ok/worker_$_", db => 'shop') for 0, 1;

# --- what is not delegated is refused

# Returns a customer whose orders are on this worker.
sub customer_of
{
	my ($worker) = @_;
	return on_coordinator("SELECT c FROM generate_series(1, 1000) n, concat('c', n) c
		WHERE get_shard_id_for_distribution_column('orders', c) IN (
			SELECT shardid FROM citus_shards WHERE nodeport = @{[$workers[$worker]->port]}) LIMIT 1");
}

my ($near, $far) = map { customer_of($_) } 0, 1;
my $in_plpgsql = "DO \$\$ BEGIN PERFORM place_order('r', '$far', 'hat'); END \$\$";
is(error_code($coordinator, 'shop', q(SELECT place_order('r', c, 'hat') FROM unnest('{ann,bob}'::text[]) c)), '55000',
	'a call that is not delegated is refused');
is(error_code($coordinator, 'shop', $in_plpgsql), '55000', 'and one in PL/pgSQL');
is(error_code($coordinator, 'shop', q(SELECT idem_claim('k'))), '55000', 'and a claim on the coordinator');
is(error_code($workers[0], 'shop', $in_plpgsql), '55000', 'and one on the wrong worker');
like($workers[0]->safe_psql('shop', "SELECT place_order('r', '$far', 'hat')"), qr/order/, 'a worker delegates to another');

for my $end (qw(ROLLBACK COMMIT))
{
	on_coordinator("BEGIN; SELECT place_order('two', '$near', 'hat'); SELECT place_order('two', '$far', 'hat'); $end");
	is(on_coordinator(q(SELECT count(*) FROM orders WHERE request = 'two')), $end eq 'COMMIT' ? 2 : 0,
		"orders on two nodes in one transaction: $end");
}

# --- workers die, and shards move

my $shoppers = Shoppers->start(PGHOST => '127.0.0.1', PGPORT => $coordinator->port, PGDATABASE => 'shop');

sub move
{
	my ($shard, $from, $to) = @_;
	return Program->start([ "$recipes/move_shard.sh", $shard, map { ('127.0.0.1', $workers[$_]->port) } $from, $to ],
		PGHOST => '127.0.0.1', PGPORT => $coordinator->port, PGUSER => $owner, PGDATABASE => 'shop',
		PATH => $coordinator->config_data('--bindir') . ":$ENV{PATH}");
}

sub has_fence
{
	my ($worker, $shard) = @_;
	return $workers[$worker]->safe_psql('shop', "SELECT count(*) FROM idem_fences WHERE scope = 'shard-$shard'");
}

# Moves a shard, and again until it has moved, although its workers die.
sub move_through
{
	my ($shard, $from, $to, @dying) = @_;

	for my $node (@dying)
	{
		my $run = move($shard, $from, $to);
		sleep rand(3);
		$node->stop('immediate');
		$run->wait_for_end;
		$node->start;
	}
	for (my $tries = 0; has_fence($from, $shard) . has_fence($to, $shard) ne '10'; $tries++)
	{
		die "shard $shard does not move" if $tries > 10;
		move($shard, $from, $to)->wait_for_end;
	}
	$shoppers->get_on("the move of a shard to worker $to");
	return;
}

$shoppers->get_on('the start');
for my $n (0, 1)
{
	$workers[$n]->stop('immediate');
	sleep 0.3;
	$workers[$n]->start;
	$shoppers->get_on("the death of worker $n");
}
my $shard = on_coordinator('SELECT min(shardid) FROM citus_shards WHERE nodeport = ' . $workers[0]->port);
move_through($shard, 0, 1);
move_through($shard, 1, 0, $workers[1]);
move_through($shard, 0, 1, $workers[0], $workers[1]);

# --- the ledger

$shoppers->stop;
$shoppers->check(split /\n/, on_coordinator(q(SELECT request, id FROM orders WHERE request LIKE 'client%')));
# The order of the page was placed before there was a subscription.
$shoppers->check_events($receiver, on_coordinator(q(SELECT count(*) FROM orders WHERE request <> 'request-1')), map { "worker_$_" } 0, 1);

done_testing();
