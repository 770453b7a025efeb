# Clients prepare transactions that enqueue events and change stock, and end
# those of each other, while sessions, workers and the server are killed; at last
# a standby is promoted.  Half of the transactions are rolled back.  If this
# fails, a quantity was promised twice or is lost, or an event was skipped, or
# sent although its transaction was rolled back.
#
# CHAOS_SECONDS: how long, and PREPARED_COUNT: how many transactions at least;
# SEED repeats what the clients try.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Havoc;
use PostgreSQL::Test::Cluster;
use Program;
use Receiver;
use Server;
use Test::More;

use constant { CLIENTS => 8, SKUS => 12, OPENING => 40, STEPS_BETWEEN => 40 };

my $seconds = $ENV{CHAOS_SECONDS} // 10;
my $least = $ENV{PREPARED_COUNT} // 500;
my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

my $receiver = Receiver->start;
my $node = new_server('prepared', allows_streaming => 1, conf => <<EOF);
max_prepared_transactions = 80
log_statement = none
idempotency.sweep_interval = 20ms
idempotency.stock_compact_after = 20
EOF
$node->start;
sql('CREATE EXTENSION idempotency');
sql("SELECT pg_create_physical_replication_slot('standby', true)");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "primary_slot_name = 'standby'\nwal_retrieve_retry_interval = 50ms");
$standby->start;
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$node->reload;
subscribe($node, $receiver, '/ok/ledger', topics => "'{t}'", ordered => 'false');
sql("SELECT stock_receive('sku-' || n, " . OPENING . ") FROM generate_series(0, @{[SKUS - 1]}) n");

my $clients = Program->start([ 'node', "$FindBin::RealBin/../programs/prepared_clients.js" ],
	PGHOST => $node->host, PGUSER => scalar(getpwuid($<)), PGDATABASE => 'postgres',
	SEED => $seed, CLIENTS => CLIENTS, SKUS => SKUS, OPENING => OPENING);
my $havoc = Havoc->new($node, $clients, $seed);


my %killings = (
	client => sub { $havoc->kill_type('client backend') },
	'a client in a transaction' => sub { $havoc->kill_one("state = 'idle in transaction'") },
	sweeper => sub { $havoc->kill_type('idempotency sweeper') },
	relay => sub { $havoc->kill_type('idempotency relay') },
	'some clients' => sub { $havoc->terminate("backend_type = 'client backend'", CLIENTS / 2) },
	'the whole server' => sub { $havoc->kill_server && $havoc->start_again },
	'the server, immediately' => sub { $havoc->stop_and_start('immediate') },
	'the server, fast' => sub { $havoc->stop_and_start('fast') },
);

$havoc->start_clients;
$havoc->get_on('their start', STEPS_BETWEEN);
do { $havoc->wreak($seconds, STEPS_BETWEEN, %killings) } while (($havoc->counts->{prepared} // 0) < $least);
$havoc->kill_server;
use_server($standby);
$standby->promote;
$havoc->start_clients($standby);
$havoc->get_on('the promotion', STEPS_BETWEEN);
$havoc->stop_clients('after the promotion');
$clients->say('end');
is($clients->line('ended'), 'ended', 'all that was prepared is ended');
$havoc->check('after ' . $havoc->deaths . ' deaths');

is(sql('SELECT count(*) FROM stock_counters() WHERE in_use'), '0', 'no counter is in use any more');
my $logged = sql(q(SELECT string_agg(payload ->> 'n', ' ' ORDER BY (payload ->> 'n')::int) FROM outbox_log WHERE topic = 't'));
$receiver->wait_for('ledger', events => scalar(split(/ /, $logged)));
my %sent = map { $_->{n} => 1 } $receiver->requests('ledger', 'data.n');
is(join(' ', sort { $a <=> $b } keys %sent), $logged, 'each committed event is sent, and no other');

my $counts = $havoc->counts;
note(join("\n", map { "$_: $counts->{$_}" } sort keys %$counts));
my %often = (
	prepared => $least, committed => $least / 4, 'rolled back' => $least / 4, reserved => $least / 8,
	'rolled back to savepoint' => $least / 8);
cmp_ok($counts->{$_} // 0, '>=', $often{$_}, "often enough: $_") for sort keys %often;
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

$clients->stop;
done_testing();
