# The recipe of docs/scale-out.md with PL/Proxy: orders are placed through a
# proxy while shards are killed, buckets move from one to another and back, and
# two shards become four.  If this fails, an order whose request was repeated is
# placed twice, or in two shards, or its event is lost or sent twice under two
# ids.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Cluster;
use Program;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(sleep time);

use constant { CLIENTS => 6, CUSTOMERS => 60, BUCKETS => 16, STEPS => 60, DEADLINE_S => 120 };

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

my $clients = Program->start([ 'node', "$FindBin::RealBin/../programs/proxy_clients.js" ],
	PGHOST => $proxy->host, PGPORT => $proxy->port, PGUSER => $owner, PGDATABASE => 'postgres',
	CLIENTS => CLIENTS, CUSTOMERS => CUSTOMERS)->wait_for_start('started');

sub answered
{
	$clients->say('counts');
	return $clients->line('counts') =~ s/counts //r;
}

# More orders get their answers.
sub get_on
{
	my ($what) = @_;
	my $before = answered();
	my $until = time + DEADLINE_S;

	while (answered() < $before + STEPS)
	{
		die "no orders are placed after $what" if time > $until;
		sleep 0.05;
	}
	pass("orders are placed after $what");
	return;
}

# --- shards die

get_on('the start');
for my $n (0, 1, 0)
{
	$servers[$n]->stop('immediate');
	sleep 0.3;
	$servers[$n]->start;
	get_on("the death of server $n");
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
	get_on("the move of bucket $bucket to shard $to");
	return;
}

move_through(3, 1, 0);
move_through(4, 0, 1, $servers[0]);
move_through(5, 1, 0, $servers[1], $servers[0]);
move_through(3, 0, 1, $servers[1]);
move_through(4, 1, 0);
move_through(5, 0, 1);

# --- two shards become four

for my $old (0, 1)
{
	my $new = $old + 2;
	my @buckets = grep { $_ % 4 == $new } 0 .. BUCKETS - 1;
	$proxy->command_ok([
			'psql', '-X', '-q', '-d', server_of($old)->connstr('postgres') . " user=$owner",
			'-v', "old=shop_$old", '-v', "new=shop_$new", '-v', 'buckets={' . join(',', @buckets) . '}',
			'-f', "$recipes/split_shard.sql" ], "shard $old gives buckets to a copy");
	subscribe(server_of($new), $receiver, "/ok/shop_$new", db => "shop_$new");
}
$proxy->safe_psql('postgres', sprintf("ALTER SERVER shop OPTIONS (ADD p2 %s, ADD p3 %s)",
		map { "'" . (as_user($_, 'shop') =~ s/'/''/gr) . "'" } 2, 3));
$proxy->safe_psql('postgres', 'UPDATE bucket_shard SET shard = bucket % 4');
get_on('the split');
on_shard($_, 'DELETE FROM orders WHERE bucket % 4 <> ' . $_) for 0, 1;
for my $n (0, 1)
{
	$servers[$n]->stop('immediate');
	$servers[$n]->start;
	get_on("the death of server $n with two shards");
}

# --- the ledger

$clients->say('stop');
my $ledger = decode_json($clients->line('stopped') =~ s/^stopped //r);
is("@{$ledger->{different}}", '', 'each repeated request gets the same answer');

my %placed;    # orders by request
my %shards;
for my $shard (0 .. 3)
{
	for my $row (split /\n/, on_shard($shard, 'SELECT request, id, bucket FROM orders'))
	{
		my ($request, $id, $bucket) = split /\|/, $row;
		push @{ $placed{$request} }, $id;
		$shards{$shard} += 1;
		fail("an order of bucket $bucket is in shard $shard") if $bucket % 4 != $shard;
	}
}
my @twice = grep { @{ $placed{$_} } > 1 } keys %placed;
is("@twice", '', 'no order is placed twice');
is(join(' ', sort grep { ($placed{$_}[0] // '') ne $ledger->{answers}{$_} } keys %{ $ledger->{answers} }), '', 'each answer is true');
is(scalar(keys %placed), scalar(keys %{ $ledger->{answers} }), 'each order has an answer');
is(scalar(grep { $shards{$_} } 0 .. 3), 4, 'all shards have orders');
note(scalar(keys %placed) . ' orders');

# The events, each under one id.
my %sent;
my $until = time + DEADLINE_S;
do
{
	sleep 0.2;
	%sent = ();
	$sent{ $_->{data}{order} }{ $_->{id} } = 1 for map { $receiver->requests("shop_$_") } 0 .. 3;
} until (keys %sent >= keys %placed || time > $until);
is(scalar(grep { !$sent{ $_->[0] } } values %placed), 0, 'the event of each order is sent');
is(scalar(keys %sent), scalar(keys %placed), 'and no other');
is(scalar(grep { keys %$_ > 1 } values %sent), 0, 'each under one id');

$clients->stop;
done_testing();
