# Rows that the compaction removes from the log of stock arrive in an archive,
# each row once, although the archive fails, loses its answers and is killed,
# and so are the sweeper and the relay.  If this fails, the only trace of a
# change is lost when the history is dropped, or an archive counts it twice.
#
# Needs: docs/recipes/node_modules test/tap/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use HTTP::Tiny;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;

use constant {
	SESSIONS => 4,
	ROUNDS => 3,
	ORDERS => 200,		# per session and round
	SKUS => 5,
	LARGE => '1152921504606846977',	# would be rounded as a float
};

my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

my $node = start_server('archive', conf => <<'EOF');
log_statement = none
idempotency.sweep_interval = 20ms
idempotency.stock_compact_after = 20
idempotency.stock_history = 0
idempotency.stock_archive_topic = 'stock.archive'
EOF
my $port = PostgreSQL::Test::Cluster::get_free_port();

# --- the archive: without the constraint that would prevent duplicates

sql('CREATE DATABASE archive');
sql(slurp_file("$FindBin::RealBin/../../../docs/recipes/archive.sql") . 'ALTER TABLE archive DROP CONSTRAINT archive_pkey', 'archive');
my $secret = sql("SELECT outbox_subscribe('archive', 'http://127.0.0.1:$port/', topics => '{stock.archive}',"
	  . " timeout => '1 s', retry_schedule => '{0 s" . ',100 ms' x 50 . ',2 s' x 49 . "}')");
my $started = 0;
my @said;

sub archive_settings
{
	return (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'archive',
		PGUSER => scalar(getpwuid($<)), PORT => $port, WEBHOOK_SECRET => $secret);
}

sub start_archive
{
	my ($faults) = @_;
	return Program->start([ 'node', "$FindBin::RealBin/../programs/archive.js" ], archive_settings(),
		SEED => 1 + ($seed + ++$started) % 2**30, FAULTS => $faults)->wait_for_start('listening');
}

# --- the load, every row of which is known beforehand

my @expected;

sub expect
{
	my ($sku, $change, $quantity, $name) = @_;
	push @expected, "$sku|$change|$quantity|$name";
	return;
}

sub order
{
	my ($name) = @_;
	my $sku = 'sku-' . int(rand(SKUS));
	my $quantity = 1 + int(rand(3));
	my $reserve = "SELECT stock_reserve('$sku', $quantity, '$name', ttl => '1 h')";
	my $dice = rand();

	return "BEGIN; $reserve; ROLLBACK;" if $dice < 0.1;
	expect($sku, 'reserve', $quantity, $name);
	return "$reserve;" if $dice < 0.2;
	my $change = $dice < 0.6 ? 'confirm' : 'cancel';
	expect($sku, $change, $quantity, $name);
	return "$reserve; SELECT stock_$change('$name');" if $change eq 'confirm';
	return "BEGIN; $reserve; SAVEPOINT a; SELECT stock_confirm('$name'); ROLLBACK TO a; SELECT stock_cancel('$name'); COMMIT;";
}

sub start_session
{
	my ($name) = @_;
	my $file = $node->basedir . "/$name.sql";

	PostgreSQL::Test::Utils::append_to_file($file, join("\n", (map { order("$name-$_") } 1 .. ORDERS), ''));
	return Program->start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', $file, $node->connstr('postgres') ]);
}

for my $i (0 .. SKUS - 1)
{
	sql("SELECT stock_receive('sku-$i', 100000, 'opening')");
	expect("sku-$i", 'receive', 100000, 'opening');
}
sql("SELECT stock_receive('large', " . LARGE . ", 'much')");
expect('large', 'receive', LARGE, 'much');
for my $i (1 .. 25)
{
	sql("SELECT stock_adjust('large', -1, 'broken $i')");
	expect('large', 'adjust', -1, "broken $i");
}

# Rows with lower ids than others that are archived before they are committed.
my $late = session($node);
$late->query_safe("BEGIN; SELECT stock_receive('sku-0', 7, 'late')");
expect('sku-0', 'receive', 7, 'late');

for my $round (1 .. ROUNDS)
{
	my $archive = start_archive(0.3);
	# A round has more events than this: at least one per item.
	my @sessions = map { start_session("order-$round-$_") } 1 .. SESSIONS;

	$archive->line('outcome claimed');
	terminate_worker($node, 'sweeper');
	$archive->line('outcome claimed');
	terminate_worker($node, 'relay');
	$archive->line('outcome claimed');
	push @said, $archive->lines;
	$archive->crash;
	ok($_->wait_for_end, "round $round: a session has done its orders") for @sessions;
	if ($round == 1)
	{
		wait_until($node, q(SELECT count(*) = 0 FROM stock_crowded(20)), 'the log has been compacted');
		$late->query_safe('COMMIT');
		$late->quit;
	}
	kill('KILL', worker_pid($node, 'sweeper'));
	$node->poll_query_until('postgres', 'SELECT true');
}

# --- all rows arrive

my $archive = start_archive(0.3);
wait_until($node, 'SELECT count(*) = 0 FROM stock_crowded(20)', 'at last the log is short');
wait_until($node, 'SELECT position = last_value AND waiting + parked + dead = 0'
	  . ' FROM outbox_subscriptions, outbox_position_seq', 'the archive has got everything');
push @said, $archive->lines;
$archive->stop;

# --- the program of the recipe, without faults

my $plain = Program->start([ 'node', "$FindBin::RealBin/../../../docs/recipes/archive.js" ], archive_settings())->wait_for_start('listening');
is(HTTP::Tiny->new->post("http://127.0.0.1:$port/", { content => '{}' })->{status}, 401, 'an event without a signature is refused');
for my $i (1 .. 25)
{
	sql("SELECT stock_receive('plain', 1, 'plain $i')");
	expect('plain', 'receive', 1, "plain $i");
}
ok($node->poll_query_until('archive', "SELECT count(*) > 0 FROM archive WHERE sku = 'plain'"), 'the program of the recipe keeps rows');
wait_until($node, 'SELECT count(*) = 0 FROM stock_crowded(20)', 'until the log is short again');
wait_until($node, 'SELECT position = last_value AND waiting + parked + dead = 0'
	  . ' FROM outbox_subscriptions, outbox_position_seq', 'and it has got everything');
$plain->stop;

# --- nothing is lost or there twice

my %said;
$said{$_}++ for @said;
cmp_ok($said{$_} // 0, '>', 0, "meanwhile: $_")
  for 'outcome claimed', 'outcome completed', map { "fault $_" } qw(before amid after unanswered);

# A row that closes a line also tells that it was reserved.
my $row = "concat_ws('|', sku, change, quantity, coalesce(note, reservation))";
my $reserved = "concat_ws('|', sku, 'reserve', quantity, reservation)";
my @archived = split(/\n/, sql("SELECT $row FROM archive UNION ALL SELECT $reserved FROM archive WHERE reserved_id IS NOT NULL", 'archive'));
my @left = split(/\n/, sql("SELECT $row FROM stock_log UNION ALL SELECT $reserved FROM stock_log WHERE reserved_id IS NOT NULL"
		  . " UNION ALL SELECT $reserved FROM stock_hold WHERE id IS NOT NULL"));
cmp_ok(scalar(@archived), '>', 2 * @left, 'most rows are in the archive');
is(join("\n", sort @archived, @left), join("\n", sort @expected),
	'with those that are left they are every change, and each of them once');
is(sql('SELECT count(*) - count(DISTINCT id) FROM archive', 'archive'), '0', 'no number is there twice');
my %archived = map { $_ => 1 } split(/\n/, sql('SELECT id FROM archive', 'archive'));
is(scalar(grep { $archived{$_} } split(/\n/, sql('SELECT id FROM stock_log'))), 0, 'nor in both places');
is(sql(q(SELECT count(*) FROM archive WHERE at IS NULL OR actor IS NULL OR (reservation IS NULL) <> (line IS NULL)), 'archive'), '0',
	'with all that was known of them');
wait_until($node, q(SELECT count(*) = (SELECT count(*) FROM stock_log) FROM stock_history WHERE change <> 'reserve'),
	'the history itself has forgotten them');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right all the same');
my $sum = q(sum(CASE WHEN change IN ('receive', 'adjust') THEN quantity WHEN change = 'confirm' THEN -quantity ELSE 0 END));
my %available = map { split /\|/ } split(/\n/, sql("SELECT sku, $sum FROM archive GROUP BY sku", 'archive'));
for (split(/\n/, sql("SELECT sku, $sum FROM stock_log GROUP BY sku UNION ALL SELECT sku, -sum(quantity) FROM stock_hold GROUP BY sku")))
{
	my ($sku, $more) = split /\|/;
	$available{$sku} += $more;
}
is(join(' ', map { "$_ $available{$_}" } sort keys %available),
	sql(q(SELECT string_agg(sku || ' ' || available, ' ' ORDER BY sku) FROM stock_levels)),
	'archive, log and holds add up to what is available');
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

done_testing();
