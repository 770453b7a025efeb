# Claims in both modes through pgbouncer in transaction mode, where each
# transaction of a client may run in another server process.  If this fails,
# they depend on a session, and most web applications cannot use them.
#
# Needs: pgbouncer docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;

use constant { SERVERS => 3, CLIENTS => 20, KEYS => 300, WAIT_S => 30 };

$ENV{PATH} .= ':/usr/sbin:/sbin';

my $node = start_server('pooled');
my $receiver = Receiver->start;
my $dir = PostgreSQL::Test::Utils::tempdir_short;
my $port = PostgreSQL::Test::Cluster::get_free_port();

prepare_recipe($node, 'request_ids.sql');
sql('CREATE TABLE ledger (name text, key text); GRANT ALL ON ledger TO shop');

# --- the pooler

append_to_file("$dir/users", qq("shop" ""\n));
append_to_file("$dir/pgbouncer.ini", <<EOF);
[databases]
* = host=@{[ $node->host ]} port=@{[ $node->port ]}
[pgbouncer]
listen_addr =
unix_socket_dir = $dir
listen_port = $port
auth_type = trust
auth_file = $dir/users
pool_mode = transaction
default_pool_size = @{[ SERVERS ]}
max_client_conn = 100
EOF

my $pgbouncer = Program->start([ 'pgbouncer', "$dir/pgbouncer.ini" ]);
for (1 .. WAIT_S)
{
	last if system_log('pg_isready', '--quiet', '--host', $dir, '--port', $port) == 0;
	Time::HiRes::sleep(0.1);
}
my %env = (as_shop($node), PGHOST => $dir, PGPORT => $port);
my $clients = Program->start([ 'node', "$FindBin::RealBin/../programs/clients.js" ], %env);

# Runs a query of one of the clients, with parameters as the driver sends them;
# returns its result.
sub ask
{
	my ($client, @query) = @_;
	ask_later($client, @query);
	return answer($client);
}

sub ask_later
{
	$clients->say(encode_json(\@_));
	return;
}

sub answer
{
	my ($client) = @_;
	return $clients->line($client) =~ s/^\S+ ?//r;
}

# --- a lease, over three server processes

my ($claim_pid, $outcome, $token) =
  split /\|/, ask('a', 'SELECT pg_backend_pid(), outcome, token FROM idem_claim($1, lease => $2)', 'lease', '1 h');
is($outcome, 'claimed', 'a lease is taken');
ask('b', 'BEGIN');
ask('b', 'SELECT');
my ($renew_pid) = split /\|/, ask('a', 'SELECT pg_backend_pid(), idem_renew($1, $2)', 'lease', $token);
ask('c', 'BEGIN');
ask('c', 'SELECT');
my ($complete_pid) = split /\|/,
  ask('a', 'SELECT pg_backend_pid(), idem_complete($1, $2, $3)', 'lease', $token, '{"n": 1}');
my %pids = map { $_ => 1 } $claim_pid, $renew_pid, $complete_pid;
is(scalar(keys %pids), 3, 'taken, renewed and completed by three server processes');
is(ask($_, 'COMMIT'), '', "$_ gives its process back") for 'b', 'c';
is(ask('b', 'SELECT outcome, response::text FROM idem_claim($1, lease => $2)', 'lease', '1 h'),
	'completed|{"n": 1}', 'and replayed to another client');

# --- transactions and savepoints

ask('a', 'BEGIN');
ask('a', 'SAVEPOINT s');
is(ask('a', 'SELECT outcome FROM idem_claim($1)', 'save'), 'claimed', 'a claim in a savepoint');
ask('a', 'ROLLBACK TO s');
is(ask('b', 'SELECT outcome FROM idem_claim($1, wait => false)', 'save'), 'claimed',
	'rolled back, it is free for another');
is(ask('a', 'SELECT outcome FROM idem_claim($1)', 'save'), 'completed', 'and the first one sees that');
is(ask('a', 'SELECT outcome FROM idem_claim($1)', 'other'), 'claimed', 'and can claim another');
ask('a', 'COMMIT');
is(ask('b', 'SELECT outcome FROM idem_claim($1)', 'other'), 'completed', 'which the commit completes');

# --- a client that dies

ask('d', 'BEGIN');
is(ask('d', 'SELECT outcome FROM idem_claim($1)', 'orphan'), 'claimed', 'a claim');
is(ask('a', 'SELECT outcome FROM idem_claim($1, wait => false)', 'orphan'), 'in_progress', 'is held');
ask_later('a', 'SELECT outcome FROM idem_claim($1)', 'orphan');
ask('d', 'die');
is(answer('a'), 'claimed', 'until its client dies');

# --- more waiting clients than server processes

my @waiters = map { "waiter-$_" } 1 .. 10;
ask('a', 'BEGIN');
ask('a', 'SELECT outcome FROM idem_claim($1)', 'popular');
ask_later($_, 'SELECT outcome FROM idem_claim($1)', 'popular') for @waiters;
wait_until($node, 'SELECT count(*) = ' . (SERVERS - 1) . q( FROM pg_stat_activity
	WHERE usename = 'shop' AND wait_event_type = 'Lock'), 'all other server processes wait for a key');
is(ask('a', 'COMMIT'), '', 'its owner, who has one, can commit');
is(join(' ', map { answer($_) } @waiters), join(' ', ('completed') x 10), 'then all get their answer');

# --- batches

is(ask('a', 'SELECT key, outcome FROM idem_claim_many($1)', [ 'm2', 'other', 'm1', 'm2' ]),
	'm2|claimed other|completed m1|claimed m2|completed', 'a batch of keys');

# --- many clients

# All clients claim the same keys in the same order, and write each granted
# claim to the ledger.
sub race
{
	my ($name, $protocol, $script) = @_;
	my $file = "$dir/$name.pgbench";

	append_to_file($file, "\\set key :key + 1\n$script\n");
	$node->command_ok([
		'pgbench', '--no-vacuum', '--host' => $dir, '--port' => $port, '--username' => 'shop',
		'--protocol' => $protocol, '--client' => CLIENTS, '--jobs' => 2,
		'--transactions' => KEYS, '--define' => 'key=0', '--file' => $file, 'postgres' ],
		"$name: " . CLIENTS . ' clients come to an end');
	is(sql("SELECT count(*), count(DISTINCT key) FROM ledger WHERE name = '$name'"), join('|', (KEYS) x 2),
		"$name: each key has one owner");
	return;
}

race('simple', 'simple', <<'END');
INSERT INTO ledger SELECT 'simple', :key FROM idem_claim('simple ' || :key) WHERE outcome = 'claimed';
END
race('extended', 'extended', <<'END');
INSERT INTO ledger SELECT 'extended', :key FROM idem_claim('extended ' || :key) WHERE outcome = 'claimed';
END
race('savepoint', 'extended', <<'END');
BEGIN;
SAVEPOINT s;
SELECT outcome FROM idem_claim('savepoint ' || :key, wait => false);
ROLLBACK TO s;
INSERT INTO ledger SELECT 'savepoint', :key FROM idem_claim('savepoint ' || :key) WHERE outcome = 'claimed';
COMMIT;
END
race('lease', 'extended', <<'END');
SELECT outcome = 'claimed' AS mine, coalesce(token, 0) AS token FROM idem_claim('lease ' || :key, lease => '1 h') \gset
\if :mine
SELECT idem_complete('lease ' || :key, :token);
INSERT INTO ledger VALUES ('lease', :key);
\endif
END
is(sql("SELECT count(DISTINCT state), min(state) FROM idem_key WHERE key LIKE 'lease %'"), '1|c',
	'all leases are completed');
is(sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop'"), SERVERS,
	'all by ' . SERVERS . ' server processes');

# --- a program of docs/recipes

my $consumer = start_recipe('request_ids.js', %env, PAYMENT_URL => $receiver->url('/ok/payments'));
$consumer->say('{"id": "r", "amount": 5}');
is($consumer->line('r'), 'r ack done 1', 'a recipe works');
$consumer->say('{"id": "r", "amount": 5}');
is($consumer->line('r'), 'r ack completed', 'once');

done_testing();
