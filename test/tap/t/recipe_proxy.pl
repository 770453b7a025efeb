# The recipe of docs/scale-out.md with PL/Proxy: orders are placed through a
# proxy while shards are killed, buckets move from one to another and back, and
# two shards become four.  If this fails, an order whose request was repeated is
# placed twice, or in two shards, or its event is lost or sent twice under two
# ids.
#
# Needs: postgresql-MAJOR-plproxy docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use Program;
use Receiver;
use Server;
use Shoppers;
use Test::More;
use Time::HiRes qw(sleep);

use constant { BUCKETS => 16 };

my $recipes = "$FindBin::RealBin/../../../docs/recipes";
my $receiver = Receiver->start;
my $proxy = new_server('proxy', preload => 0);
my @servers = map { new_server("server_$_", internal_path => 0, conf => 'log_min_messages = fatal') } 0, 1;
$_->start for $proxy, @servers;

# --- two shards and a proxy

for my $n (0, 1)
{
	$servers[$n]->safe_psql('postgres', "CREATE DATABASE shop_$n");
	prepare_recipe($servers[$n], 'shop_shard.sql', "shop_$n");
	subscribe($servers[$n], $receiver, "/ok/shop_$n", db => "shop_$n");
}

# Where a shard is: after the copies, 2 is beside 0, and 3 beside 1.
sub server_of { return $servers[$_[0] % 2]; }
sub as_user   { my ($shard, $user) = @_; return server_of($shard)->connstr("shop_$shard") . " user=$user"; }
sub on_shard  { my ($shard, $sql) = @_; return server_of($shard)->safe_psql("shop_$shard", $sql); }

my $owner = getpwuid($<);
$proxy->command_ok([
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $proxy->connstr('postgres'), '-f', "$recipes/shop_proxy.sql",
		map { ('-v', "shard_$_=" . as_user($_, 'shop')) } 0, 1 ], 'the proxy is set up');

my $shoppers = Shoppers->start(PGHOST => $proxy->host, PGPORT => $proxy->port, PGDATABASE => 'postgres');

# --- shards die

$shoppers->get_on('the start');
for my $n (0, 1, 0)
{
	$servers[$n]->stop('immediate');
	sleep 0.3;
	$servers[$n]->start;
	$shoppers->get_on("the death of server $n");
}

# --- buckets move

sub route
{
	my ($bucket, $shard) = @_;
	$proxy->safe_psql('postgres', "UPDATE bucket_shard SET shard = $shard WHERE bucket = $bucket");
	return;
}

sub move
{
	my ($bucket, $from, $to) = @_;
	return Program->start([ "$recipes/move_bucket.sh", $bucket, as_user($from, $owner), as_user($to, $owner) ],
		PATH => server_of($from)->config_data('--bindir') . ":$ENV{PATH}");
}

# Moves a bucket, and again until it has moved, although its servers die.
sub move_through
{
	my ($bucket, $from, $to, @deaths) = @_;
	my $tries = 0;

	for my $dying (@deaths)
	{
		my $run = move($bucket, $from, $to);
		sleep rand(0.4);
		$dying->stop('immediate');
		$run->wait_for_end;
		$dying->start;
	}
	while (on_shard($from, "SELECT count(*) FROM idem_fences WHERE scope = 'bucket-$bucket'") != 1
		|| on_shard($to, "SELECT count(*) FROM idem_fences WHERE scope = 'bucket-$bucket'") != 0
		|| on_shard($from, "SELECT count(*) FROM orders WHERE bucket = $bucket") != 0)
	{
		die "bucket $bucket does not move" if ++$tries > 10;
		move($bucket, $from, $to)->wait_for_end;
	}
	route($bucket, $to);
	$shoppers->get_on("the move of bucket $bucket to shard $to");
	return;
}

move_through(3, 1, 0);
move_through(4, 0, 1, $servers[0]);
move_through(5, 1, 0, $servers[1], $servers[0]);
move_through(3, 0, 1, $servers[1]);
move_through(4, 1, 0);
move_through(5, 0, 1);

# Two runs must not move a bucket at the same time.
my $run = session($servers[0], 'shop_0');
$run->query_safe("SELECT pg_advisory_lock(hashtext('bucket-6'))");
$proxy->command_fails_like([ "$recipes/move_bucket.sh", 6, as_user(0, $owner), as_user(1, $owner) ],
	qr/^bucket 6: another run is moving it$/, 'a bucket that another run moves is left alone');
is(on_shard($_, q(SELECT count(*) FROM idem_fences WHERE scope = 'bucket-6')), '0', "nor has shard $_ a fence") for 0, 1;
$run->quit;
$shoppers->get_on('a run that did nothing');

# Bucket 3 has moved to shard 1. An order left in shard 0 that is not there came
# to another database, and this must not be the end of it.
on_shard(0, q(INSERT INTO orders (bucket, request, customer, item) VALUES (3, 'left', 'ann', 'hat')));
$proxy->command_fails_like([ "$recipes/move_bucket.sh", 3, as_user(0, $owner), as_user(1, $owner) ],
	qr/^bucket 3: it has moved, but to another database$/, 'orders that came elsewhere are not deleted');
is(on_shard(0, q(DELETE FROM orders WHERE request = 'left' RETURNING item)), 'hat', 'they are still there');

# --- two shards become four

# The command that copies a shard.
sub split_command
{
	my ($old, $new, $n) = @_;
	return ('psql', '-X', '-q', '-d', server_of($n)->connstr('postgres') . " user=$owner", '-v', "old=$old", '-v', "new=$new",
		'-v', 'buckets={' . join(',', grep { $_ % 4 == $n + 2 } 0 .. BUCKETS - 1) . '}', '-f', "$recipes/split_shard.sql");
}

$servers[0]->safe_psql('postgres', 'CREATE DATABASE shop_2');
$proxy->command_fails_like([ split_command('shop_0', 'shop_2', 0) ], qr/the new database exists/, 'a shard is not copied over another one');
$shoppers->get_on('a copy that failed');
$servers[0]->safe_psql('postgres', 'DROP DATABASE shop_2');
$servers[0]->safe_psql('postgres', 'CREATE DATABASE stock');
$servers[0]->safe_psql('stock', q(CREATE EXTENSION idempotency; SELECT stock_receive('hat', 1)));
$proxy->command_fails_like([ split_command('stock', 'stock_2', 0) ], qr/the shard has stock/, 'nor is one with stock copied');
is($servers[0]->safe_psql('stock', 'SELECT count(*) FROM idem_fences'), '0', 'which works as before');

for my $old (0, 1)
{
	my $new = $old + 2;
	$proxy->command_ok([ split_command("shop_$old", "shop_$new", $old) ], "shard $old gives buckets to a copy");
	subscribe(server_of($new), $receiver, "/ok/shop_$new", db => "shop_$new");
}
$proxy->safe_psql('postgres', sprintf("ALTER SERVER shop OPTIONS (ADD p2 %s, ADD p3 %s)",
		map { "'" . (as_user($_, 'shop') =~ s/'/''/gr) . "'" } 2, 3));
$proxy->safe_psql('postgres', 'UPDATE bucket_shard SET shard = bucket % 4');
$shoppers->get_on('the split');
on_shard($_, 'DELETE FROM orders WHERE bucket % 4 <> ' . $_) for 0, 1;
for my $n (0, 1)
{
	$servers[$n]->stop('immediate');
	$servers[$n]->start;
	$shoppers->get_on("the death of server $n with two shards");
}

# --- the ledger

$shoppers->stop;
my @orders;
for my $shard (0 .. 3)
{
	push @orders, split /\n/, on_shard($shard, 'SELECT request, id FROM orders');
	is(on_shard($shard, "SELECT count(*) FILTER (WHERE bucket % 4 = $shard) > 0, count(*) FILTER (WHERE bucket % 4 <> $shard) FROM orders"),
		't|0', "shard $shard has orders, and only its own");
}
$shoppers->check(@orders);
$shoppers->check_events($receiver, scalar(@orders), map { "shop_$_" } 0 .. 3);

done_testing();
