# Everything at once: claims of all kinds, orders, their confirmations and
# their events, while receivers and readers fail, relays come and go, all rings turn as
# fast as possible, and one process of the server after another is killed.  If
# this fails, an answer was wrong: work is lost or done twice, an event is
# lost, invented or overtaken, a late owner was accepted, or a unit is sold
# twice.  SEED repeats what the clients try, but not in which order they get
# there.
#
# SOAK_SECONDS: how long; SEED; KILLS, a pattern of the processes to kill, to
# find the cause of a failure.  It goes on for longer if too little has happened.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Havoc;
use Program;
use Server;
use Test::More;

use constant {
	CLIENTS => 12,
	STEPS_BETWEEN => 40,
	CHECK_EVERY_S => 60,
	TTL_S => 2,
	DOWN_MS => 500,
	LONGER_S => 60,
};

my $seconds = $ENV{SOAK_SECONDS} // 8;
my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

my $node = start_server('soak', conf => <<EOF);
max_connections = @{[CLIENTS + 16]}
log_statement = none
autovacuum_naptime = 1s
idempotency.relays = 2
idempotency.ttl = @{[TTL_S]}
idempotency.sweep_interval = 20ms
idempotency.outbox_retention = 0
idempotency.stock_items = 24
idempotency.stock_compact_after = 20
idempotency.stock_events = on
EOF

# What an operation writes besides the extension's tables.  Nothing in these
# tables prevents duplicates.
sql(<<'SQL');
CREATE TABLE trace (operation text);
CREATE TABLE effect (operation text, scope text, key text, token bigint, claimed_at float8, kept_until float8);
CREATE TABLE booking (operation text, change stock_change, reservation text, sku text, quantity bigint);
CREATE INDEX ON booking (reservation);
CREATE TABLE seen (n bigserial, id text, payload jsonb);

-- Reads a batch, and keeps its events, except some that fail, and those behind
-- them of their key.
CREATE FUNCTION read_some(failing float8) RETURNS int LANGUAGE sql AS $$
	WITH fetched AS (SELECT *, row_number() OVER () AS n, random() < failing AS bad FROM outbox_fetch('read', 20, lease => '5 s')),
		batch AS (SELECT *, bad OR key IS NOT NULL AND bool_or(bad) OVER (PARTITION BY key ORDER BY n) AS failed FROM fetched),
		kept AS (INSERT INTO seen (id, payload) SELECT id, payload FROM batch WHERE NOT failed ORDER BY n),
		done AS (SELECT outbox_ack('read', max(token), coalesce(array_agg(position) FILTER (WHERE failed), '{}'), CASE WHEN bool_or(failed) THEN 'not now' END)
			FROM batch HAVING count(*) > 0)
	SELECT (SELECT count(*) FROM batch)::int FROM (SELECT count(*) FROM done) d
$$;
CREATE FUNCTION read_all() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	WHILE read_some(0) > 0 LOOP
	END LOOP;
	RETURN true;
END
$$;
INSERT INTO booking SELECT 'opening', 'receive', NULL, 'sku-' || n, 50 FROM generate_series(0, 39) n;
SELECT format('SELECT stock_receive(%L, %s, %L)', sku, quantity, operation) FROM booking \gexec
SQL

my $secret = sql('SELECT outbox_secret_generate()');
my $clients = Program->start([ 'node', "$FindBin::RealBin/../programs/soak_clients.js" ],
	PGHOST => $node->host, PGUSER => scalar(getpwuid($<)), PGDATABASE => 'postgres',
	SEED => $seed, CLIENTS => CLIENTS, TTL_MS => 1000 * TTL_S, SECRET => $secret);
my ($port) = $clients->line('port') =~ /(\d+)/;
my $havoc = Havoc->new($node, $clients, $seed);

sub subscribe_to_all
{
	my ($name, $more) = @_;
	sql("SELECT outbox_subscribe('$name', 'http://127.0.0.1:$port/$name', secret => '$secret',"
		  . " topics => '{shop.*,stock.expired}', $more)");
	return;
}

# A failed event is retried until it is accepted, except those that picky
# refuses.
my $patience = "retry_schedule => '0 s'::interval || array_fill(interval '20 ms', ARRAY[99]), timeout => '400 ms'";
subscribe_to_all('plain', $patience);
subscribe_to_all('parts', "$patience, partitions => 4");
subscribe_to_all('free', "$patience, ordered => false, format => 'cloudevents'");
subscribe_to_all('picky', "retry_schedule => '{0 s,20 ms,20 ms}'");
sql("SELECT outbox_subscribe('read', NULL, topics => '{shop.*}', partitions => 2,"
	  . " retry_schedule => '0 s'::interval || array_fill(interval '20 ms', ARRAY[99]))");

# --- what is killed, and what else happens

# True if the server was running.
sub set
{
	my ($name, $value) = @_;
	return defined eval { alter_system("idempotency.$name", $value); 1 };
}

sub killings_of_types
{
	return map { my $type = $_; ($type => sub { $havoc->kill_type($type) }) } @_;
}

sub terminations_of_types
{
	return map { my $type = $_; ("$type, terminated" => sub { $havoc->terminate("backend_type = '$type'", 1) }) } @_;
}

my @workers = ('idempotency launcher', 'idempotency relay', 'idempotency sweeper');
my %killings = (
	killings_of_types(@workers, 'client backend', 'checkpointer', 'walwriter', 'background writer', 'autovacuum launcher'),
	terminations_of_types(@workers),
	'a client in a transaction' => sub { $havoc->kill_one("state = 'idle in transaction'") },
	'many clients' => sub { $havoc->terminate("backend_type = 'client backend'", CLIENTS / 3) },
	'the postmaster' => sub { $havoc->kill_postmaster && $havoc->start_again },
	'the whole server' => sub { $havoc->kill_server && $havoc->start_again },
	'the server, immediately' => sub { $havoc->stop_and_start('immediate') },
	'the server, fast' => sub { $havoc->stop_and_start('fast') },
	'the endpoints, for a moment' => sub { $clients->say('down ' . DOWN_MS); 1 },
	'another number of relays' => sub { set('relays', 1 + int(rand(4))) },
	'another retention of the log' => sub { set('outbox_retention', int(rand(2))) },
);

my $kills = $ENV{KILLS} // '.';
delete $killings{$_} for grep { !/$kills/ } keys %killings;

# --- what is true whenever nothing is in progress

# All reservations have ended, and all events have been delivered.
sub settle
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_until($node, 'SELECT count(*) = 0 FROM stock_hold', "$what: what nobody has paid expires");
	wait_until($node, "SELECT read_all() AND bool_and((position = last_value OR name = 'read') AND waiting = 0 AND parked = 0)"
		  . ' FROM outbox_subscriptions, outbox_position_seq', "$what: all is delivered");
	return;
}

sub check
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$havoc->stop_clients($what);
	settle($what);
	$havoc->check($what);
	return;
}

# What must have happened for the test to mean something.
my %least = (
	acknowledged => 800, refused => 50, unknown => 3, delivered => 2000, repeated => 50, replayed => 100,
	claimed => 50, 'taken over' => 20, late => 5, completed => 100, failed => 10, in_progress => 20,
	complete => 20, fail => 5, renew => 10, 'give back' => 5,
	reserved => 100, 'confirm done' => 15, 'cancel done' => 5, 'confirm expired' => 1,
	cancelled => 3, 'not cancelled' => 3, 'enqueued again' => 20, leased => 10, lapsed => 3,
	released => 10, 'rolled back to savepoint' => 20, 'refused ID001' => 5,
	map { ("fault $_" => 10) } qw(refuse error busy reset half hang late slow));

sub enough
{
	my ($counts) = @_;
	return !grep { ($counts->{$_} // 0) < $least{$_} } keys %least;
}

my $end = time + $seconds;
my $latest = $end + LONGER_S;
do
{
	my $left = $end - time;
	$havoc->start_clients;
	$havoc->get_on('their start', STEPS_BETWEEN);
	$havoc->wreak($left < CHECK_EVERY_S ? $left : CHECK_EVERY_S, STEPS_BETWEEN, %killings);
	check('after ' . $havoc->deaths . ' deaths');
	diag(sprintf('%d of %d s, %d deaths, %d operations acknowledged, %d events delivered', $seconds - $end + time,
		$seconds, $havoc->deaths, @{ $havoc->counts }{qw(acknowledged delivered)})) if $ENV{SOAK_SECONDS};
	$end = time + 1 if time >= $end && time < $latest && !enough($havoc->counts);
} while (time < $end && Test::More->builder->is_passing);

$node->restart;
check('after a restart');

# Permanently refused events are sent again.  An answer confirms the command.
$clients->say('patient');
$havoc->counts;
sql("SELECT outbox_redrive('picky')");
check('after a redrive');
is(sql('SELECT count(*) FROM outbox_dead'), '0', 'nothing is dead any more');

# --- has enough happened?

my $counts = $havoc->counts;
note(join("\n", map { "$_: $counts->{$_}" } sort keys %$counts));
cmp_ok($counts->{$_} // 0, '>=', $least{$_}, "at least $least{$_}: $_") for sort keys %least;
cmp_ok($havoc->deaths, '>=', scalar(keys %killings), 'all were killed');
cmp_ok(sql("SELECT max(segment) FROM $_"), '>', 3, "$_ has turned") for qw(idem_ring outbox_ring);
cmp_ok(sql("SELECT count(*) FROM stock_history WHERE change = 'expire'"), '>', 10, 'reservations have expired');
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

$clients->stop;
done_testing();
