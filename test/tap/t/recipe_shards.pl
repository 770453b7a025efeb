# "From a deduplication space": a router repeats writes to two shards until it
# gets an answer, over connections that lose queries and answers.  If this
# fails, a repeated deposit is booked twice, or gets another answer.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;

my @shards = qw(shard_0 shard_1);
my $node = start_server('shards', conf => 'idempotency.sweep_interval = 50ms', internal_path => 0);

for my $db (@shards, 'brief')
{
	sql("CREATE DATABASE $db");
	prepare_recipe($node, 'shard.sql', $db);
}
sql("ALTER DATABASE brief SET idempotency.ttl = '2 s'");

# The network between the router and the shards.
my $dir = PostgreSQL::Test::Utils::tempdir_short;
my $network = Program->start([
	'node', "$FindBin::RealBin/../programs/flaky.js",
	map { "$_/.s.PGSQL." . $node->port } $node->host, $dir ])->wait_for_start('listening');

sub router
{
	my ($host, @databases) = @_;
	return start_recipe('router.js', as_shop($node), TRY_TIMEOUT_MS => 300,
		SHARDS => encode_json([ map { { host => $host, database => $_ } } @databases ]));
}

my $router = router($dir, @shards);

my $ann;    # the shard with ann's account

# Runs the same on both shards.
sub on_shards
{
	my ($query) = @_;
	return join(' ', sort map { $node->safe_psql($_, $query) } @shards);
}

sub balance_of_ann
{
	return $node->safe_psql($ann, q(SELECT balance FROM accounts WHERE name = 'ann'));
}

# Makes the network do this to the next queries.
sub lose
{
	my ($fault, $times) = @_;
	$network->say("$fault $times");
	$network->line('told');
	return;
}

sub deposit_later
{
	my ($id, $account, $amount) = @_;
	$router->say(encode_json({ id => $id, account => $account, amount => $amount }));
	return;
}

sub answer
{
	my ($id) = @_;
	my ($json) = $router->line($id) =~ /^\S+ (.*)/;
	return decode_json($json // '{}');
}

# Returns the balance or the error, and the number of tries.
sub deposit
{
	deposit_later(@_);
	my $answer = answer($_[0]);
	return ($answer->{balance} // $answer->{code} // 'nothing') . " by try $answer->{tries}";
}

# --- check, insert and change, in the database of the data

is(deposit('a-1', 'ann', 5), '5 by try 1', 'a deposit');
is(deposit('b-1', 'bob', 7), '7 by try 1', 'on another account');
is(on_shards(q(SELECT string_agg(name, ',') FROM accounts)), 'ann bob', 'the accounts are on two shards');
is(on_shards(q(SELECT string_agg(key, ',') FROM idem_key)), 'a-1 b-1', 'the ids too');
($ann) = grep { $node->safe_psql($_, q(SELECT name FROM accounts WHERE name = 'ann')) } @shards;
is($node->safe_psql($ann, 'SELECT name, key FROM accounts, idem_key'), 'ann|a-1', 'each beside its account');

# --- saved answers

is(deposit('a-2', 'ann', 5), '10 by try 1', 'another deposit');
is(deposit('a-1', 'ann', 5), '5 by try 1', 'the first one, repeated, is answered as it was then');
is(balance_of_ann(), 10, 'and booked once');
is(deposit('a-1', 'ann', 6), '22023 by try 1', 'an id is for one deposit');

# --- the network

lose('cut', 1);
is(deposit('cut', 'ann', 5), '15 by try 2', 'the connection breaks before the answer: the next try gets it');
is(balance_of_ann(), 15, 'it is booked once');
lose('lose-answer', 2);
is(deposit('lost', 'ann', 5), '20 by try 3', 'two answers get lost: the third try gets it');
is(balance_of_ann(), 20, 'it is booked once');
lose('lose-question', 1);
is(deposit('unasked', 'ann', 5), '25 by try 2', 'a question gets lost: the next try does it');

# --- a try that is still running when the next one comes

my $session = session($node, $ann);
$session->query_safe("BEGIN; SELECT FROM accounts WHERE name = 'ann' FOR UPDATE");
deposit_later('slow', 'ann', 5);
wait_until($node, q(SELECT count(*) > 2 FROM pg_stat_activity WHERE usename = 'shop'
	AND wait_event_type = 'Lock'), 'a deposit takes long: more tries come, and wait for it');
is($node->safe_psql($ann, q(SELECT outcome FROM idem_claim('slow', 'deposit', wait => false))),
	'in_progress', 'who does not want to wait is told in_progress');
$session->query_safe('COMMIT');
is(answer('slow')->{balance}, 30, 'then the last of them is answered');
wait_until($node, q(SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'shop'
	AND state = 'active'), 'the others end too');
is(balance_of_ann(), 30, 'and it is booked once');
$session->quit;

# --- the server

$node->stop('immediate');
deposit_later('crash', 'ann', 5);
$node->start;
is(answer('crash')->{balance}, 35, 'a deposit is repeated until the server is back');

# --- a replica answers while the primary moves: another connection may reach it

my $offset = -s $node->logfile;
my $refused = qr/cannot execute idem_claim\(\) in a read-only transaction/;
sql("ALTER DATABASE $_ SET default_transaction_read_only = on") for @shards;
lose('cut', 1);
deposit_later('moving', 'ann', 5);
$node->wait_for_log($refused, $offset);
sql("ALTER DATABASE $_ RESET default_transaction_read_only") for @shards;
is(answer('moving')->{balance}, 40, 'a deposit is repeated until it is there');

# --- many deposits, many faults

my @ids = map { "many-$_" } 1 .. 200;
my %account = map { $ids[$_] => (qw(ann bob carl dora))[ $_ % 4 ] } 0 .. $#ids;
lose('cut', 40);
lose('lose-answer', 10);
lose('lose-question', 10);
deposit_later($_, $account{$_}, 1) for @ids;
my %answers = map { $_ => answer($_) } @ids;
is(scalar(grep { $_->{balance} } values %answers), 200, '200 deposits are answered');
cmp_ok(scalar(grep { $_->{tries} > 1 } values %answers), '>', 20, 'many of them not by the first try');
my %balances = map { split /\|/ }
  map { split /\n/, $node->safe_psql($_, 'SELECT name, balance FROM accounts') } @shards;
is_deeply(\%balances, { ann => 90, bob => 57, carl => 50, dora => 50 }, 'each is booked once');
my %distinct = map { +"$_->{account} $_->{balance}" => 1 } values %answers;
is(scalar(keys %distinct), 200, 'and each answer is that of its own deposit');
$router->stop;

# --- ids expire by themselves

$router = router($node->host, 'brief');
deposit_later($_, 'ann', 1) for @ids;
%answers = map { $_ => answer($_) } @ids;
is(deposit('many-1', 'ann', 1), "$answers{'many-1'}{balance} by try 1", 'an id is remembered for its ttl');
is($node->safe_psql('brief', 'SELECT balance FROM accounts'), 200, 'and deposits are booked once');
ok($node->poll_query_until('brief', q(
	SELECT bool_and(pg_relation_size(format('idempotency_internal.idem_key_%s', slot)::regclass) = 0) FROM idempotency_internal.idem_ring)),
	'after that its space is free again, and nobody had to see to it');

done_testing();
