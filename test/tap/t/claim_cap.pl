# With idempotency.keys_max_size, the oldest finished keys are forgotten when
# the keys take more.  If this fails, the disk fills up, the work of a key in
# progress is done twice, or newer keys are forgotten before older ones.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

use constant { WAVE => 5000, CAP_MB => 4, OPEN => 20, CLIENTS => 4, SECONDS => 3 };

my $node = start_server('claim_cap', conf => <<EOF);
idempotency.sweep_interval = 20ms
max_prepared_transactions = 5
EOF
my $finished = 0;

# Claims that many new keys, which are finished at once.
sub wave
{
	my ($name) = @_;
	$finished += WAVE;
	return sql("SELECT count(*) FROM idem_claim_many(ARRAY(SELECT '$name ' || n FROM generate_series(1, @{[ WAVE ]}) n)) WHERE outcome = 'claimed'");
}

sub is_bounded
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT idem_size('{current,old}') <= @{[ CAP_MB ]} * 1024 * 1024", "$when: the keys take no more than the limit");
}

sub outcome { return sql("SELECT outcome FROM idem_claim('$_[0]')") }
sub evicted { return sql('SELECT evicted FROM idem_stats') }

# What is known, what was forgotten, and nothing else.  A segment is counted just
# before it is out of sight, so the sum can be too large for a moment.
sub all_are_accounted_for
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT (SELECT count(*) FROM idem_key WHERE state = 'c') + (SELECT evicted FROM idem_stats) = $finished",
		"$when: all are known or counted");
}

# --- no limit

sql("CREATE TABLE owner AS SELECT n, token FROM generate_series(1, @{[ OPEN ]}) n, idem_claim('open ' || n, lease => '1 h')");
wave("first $_") for 1 .. 10;
cmp_ok(sql("SELECT idem_size('{current,old}')"), '>', CAP_MB * 1024 * 1024, 'without a limit the keys grow');
is(evicted(), '0', 'and none is forgotten');
is(sql("SELECT count(*) FROM idempotency_status() WHERE \"check\" = 'keys' AND state <> 'ok'"), '0', 'nor is there a warning');

# --- a limit

alter_system('idempotency.keys_max_size', CAP_MB);
is_bounded('all in one segment');
wave("second $_") for 1 .. 2;
wave("third $_") for 1 .. 12;
is_bounded('later');
is(outcome('third 12 1'), 'completed', 'the newest key is known');
is(outcome('third 12 ' . WAVE), 'completed', 'so is the last one of all');
is(sql("SELECT count(*) FROM idem_key WHERE key ~ '^(first|second)'"), '0', 'the oldest ones are not');
my ($oldest) = sql("SELECT min(split_part(key, ' ', 2)::int) FROM idem_key WHERE key LIKE 'third%'");
is(sql("SELECT count(*) FROM idem_key WHERE key LIKE 'third%' AND split_part(key, ' ', 2)::int > $oldest"), (12 - $oldest) * WAVE,
	'no key is forgotten before older ones');
all_are_accounted_for('with a limit');
is(outcome('first 1 1'), 'claimed', 'a key that was forgotten can be claimed again');
$finished++;

is(sql("SELECT count(*) FROM idem_key WHERE state = 'p'"), OPEN, 'keys in progress are not forgotten');
is(sql("SELECT outcome FROM idem_claim('open 1')"), 'in_progress', 'nobody else gets one');
sql("SELECT idem_complete('open ' || n, token, to_jsonb(n)) FROM owner");
$finished += OPEN;
is(sql("SELECT count(*) FROM owner, idem_claim('open ' || n) c WHERE c.response = to_jsonb(n)"), OPEN, 'their owners can complete them');

is(sql("SELECT state, hint FROM idempotency_status() WHERE \"check\" = 'keys'"),
	'warning|raise idempotency.keys_max_size, or lower idempotency.ttl', 'idempotency_status has a warning');
like(slurp_file($node->logfile), qr/WARNING:  \d+ keys are forgotten before their time\n.*DETAIL:  The keys take more than idempotency\.keys_max_size/,
	'so has the log');

# --- open and prepared transactions

my $session = session($node);
is($session->query_safe("BEGIN; SELECT outcome FROM idem_claim('transaction')"), 'claimed', 'a transaction claims a key');
sql("BEGIN; SELECT idem_claim('prepared'); PREPARE TRANSACTION 'p'");
wave("beside $_") for 1 .. 6;
is($session->query_safe("SELECT outcome FROM idem_claim('transaction')"), 'completed', 'it stays known to that transaction');
is(sql("SELECT outcome FROM idem_claim('transaction', wait => false)"), 'in_progress', 'and in progress for others');
is(sql("SELECT outcome FROM idem_claim('prepared', wait => false)"), 'in_progress', 'so is one that was prepared');
alter_system('idempotency.keys_max_size', -1);
sql('SELECT pg_sleep(0.1)');
$session->query_safe('COMMIT');
sql("COMMIT PREPARED 'p'");
is(outcome('transaction'), 'completed', 'after the commit it is known');
is(outcome('prepared'), 'completed', 'so is the other one');
$finished += 2;
alter_system('idempotency.keys_max_size', CAP_MB);
is_bounded('when they have ended');
all_are_accounted_for('then');

# --- owners at work

my $script = $node->basedir . '/work.pgbench';
append_to_file($script, <<'SQL');
\set n :n + 1
SELECT token AS t FROM idem_claim('client ' || :client_id || ' ' || :n, lease => '1 min') \gset
\sleep 200 ms
SELECT idem_complete('client ' || :client_id || ' ' || :n, :t);
SQL
my $output = '';
my $working = IPC::Run::start([ 'pgbench', '--no-vacuum', '--client' => CLIENTS, '--time' => SECONDS, '--define' => 'n=0', '--file' => $script,
		'--host' => $node->host, '--port' => $node->port, 'postgres' ], '>&', \$output);
my $waves = 0;
wave('work ' . ++$waves) while $working->pumpable && $waves < 1000 && ($working->pump_nb || 1);
ok($working->finish, 'owners complete their keys while others are forgotten') || diag($output);
cmp_ok($waves, '>', 5, 'which happens meanwhile');
$finished += $1 if $output =~ /transactions actually processed: (\d+)/;
is_bounded('under load');
all_are_accounted_for('under load');

# --- more keys in progress than the limit

sql("SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'many ' || n FROM generate_series(1, 40000) n), lease => '1 h')");
sql('SELECT pg_sleep(0.3)');
my $segment = sql('SELECT max(segment) FROM idem_ring');
sql('SELECT pg_sleep(0.5)');
is(sql("SELECT count(*) FROM idem_key WHERE key LIKE 'many %' AND state = 'p'"), '40000', 'keys in progress may take more');
is(sql('SELECT max(segment) FROM idem_ring'), $segment, 'and are not moved again and again');
all_are_accounted_for('at the end');

done_testing();
