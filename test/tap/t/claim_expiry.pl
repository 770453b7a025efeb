# The sweeper expires keys by itself, in every database and in any schema of
# the extension.  If this fails, keys accumulate, a key is forgotten too early,
# or one long transaction stops the claims of all others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;

use constant { KEYS => 500, WAVES => 5 };

my $node = start_server('claim_expiry', conf => <<EOF);
idempotency.sweep_interval = 20ms
idempotency.ttl = 1s
EOF

sql('CREATE DATABASE other');
$node->safe_psql('other', 'CREATE SCHEMA "Odd schema"; CREATE EXTENSION idempotency SCHEMA "Odd schema"');

# --- two databases at once

my %path = (postgres => 'public, idempotency_internal', other => '"Odd schema", idempotency_internal');
for my $db (sort keys %path)
{
	$node->safe_psql($db, <<SQL);
ALTER DATABASE $db SET search_path = $path{$db};
SET search_path = $path{$db};
SELECT token AS t FROM idem_claim('long', lease => '1 h', request => 'r') \\gset
SELECT idem_complete('long', :t, '"kept"', ttl => '1 h');
SELECT idem_claim('running', lease => '1 h');
SQL
}
for my $wave (1 .. WAVES)
{
	for my $db (sort keys %path)
	{
		$node->safe_psql($db, 'SELECT count(*) FROM idem_claim_many(ARRAY('
			  . "SELECT 'short ' || i FROM generate_series(1, @{[KEYS]}) i), ttl => '50 ms')");
	}
	$node->poll_query_until($_, 'SELECT count(*) = 2 FROM idem_key') for sort keys %path;
}
for my $db (sort keys %path)
{
	ok($node->poll_query_until($db, 'SELECT expired >= ' . KEYS . ' FROM idem_stats'), "$db: keys expire");
	cmp_ok($node->safe_psql($db, 'SELECT (SELECT count(*) FROM idem_key_0) + (SELECT count(*) FROM idem_key_1)'
			  . ' + (SELECT count(*) FROM idem_key_2)'), '<=', 3 * KEYS, "$db: and make room");
	is($node->safe_psql($db, 'SELECT string_agg(key, $$ $$ ORDER BY key) FROM idem_key'), 'long running',
		"$db: others are migrated");
	is($node->safe_psql($db, "SELECT outcome, response FROM idem_claim('long', request => 'r')"), 'completed|"kept"',
		"$db: with what they answer");
	is($node->safe_psql($db, "SELECT outcome FROM idem_claim('running')"), 'in_progress', "$db: and their leases");
	is($node->safe_psql($db, "SELECT outcome, attempt FROM idem_claim('short 1')"), 'claimed|1',
		"$db: one that has expired can be claimed");
}

# --- by the setting

sql("SELECT idem_claim('by the setting')");
wait_until($node, "SELECT count(*) = 0 FROM idem_key WHERE key = 'by the setting'", 'idempotency.ttl counts');
$node->append_conf('postgresql.conf', 'idempotency.ttl = 1h');
$node->reload;
wait_until($node, "SELECT setting = '3600' FROM pg_settings WHERE name = 'idempotency.ttl'", 'reloaded');
is(sql("SELECT idem_claim('by the new setting'); SELECT expires_at > now() + interval '59 min' FROM idem_key WHERE key = 'by the new setting'")
	  =~ /t$/, 1, 'from the next claim on');

# --- a long transaction delays the truncation, and nothing else

sql('SELECT count(idem_forget(key)) FROM idem_key');
wait_until($node, q(SELECT count(*) FILTER (WHERE state = 'empty') = 2 FROM idem_ring), 'two segments are empty');
my $session = session($node);
$session->query_safe("BEGIN; SELECT idem_claim('slow', ttl => '1 s')");
sql("SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'while ' || i FROM generate_series(1, 500) i), ttl => '20 ms')");
wait_until($node, q(SELECT count(*) = 1 FROM idem_ring WHERE state = 'old' AND closed_at < clock_timestamp() - interval '300 ms'),
	'what a long transaction may have written into is not emptied');
is(sql("SELECT outcome FROM idem_claim('while 1', ttl => '20 ms')"), 'claimed', 'claims go on');
is(sql("SELECT outcome FROM idem_claim('slow', wait => false)"), 'in_progress', 'its own key is its own');
$session->query_safe('COMMIT');
wait_until($node, q(SELECT count(*) FILTER (WHERE state = 'empty') = 2 FROM idem_ring), 'it is when the transaction has ended');
$session->quit;

# --- nor does a lock of the ring stop the sweeper

my $locker = session($node);
$locker->query_safe('BEGIN; LOCK TABLE idem_ring IN ACCESS EXCLUSIVE MODE');
is(sql('SELECT idem_truncate()'), 'f', 'a step gives up where the ring is locked, and is no error');
$locker->query_safe('ROLLBACK');
$locker->quit;

# --- keys come and go, one in ten of them with a longer ttl

sql(<<'SQL');
CREATE TABLE seen (kept bigint, there bigint);
CREATE PROCEDURE come_and_go(rounds integer) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. rounds LOOP
		PERFORM idem_claim_many(ARRAY(SELECT 'brief ' || random() FROM generate_series(1, 180)), ttl => '50 ms');
		PERFORM idem_claim_many(ARRAY(SELECT 'longer ' || random() FROM generate_series(1, 20)), ttl => '1 s');
		COMMIT;
		INSERT INTO seen SELECT (SELECT count(*) FROM idem_key), (SELECT count(*) FROM idem_key_0)
			+ (SELECT count(*) FROM idem_key_1) + (SELECT count(*) FROM idem_key_2);
		COMMIT;
		PERFORM pg_sleep(0.02);
	END LOOP;
END
$$;
CALL come_and_go(100);
SQL
# The median: a sweeper that had to wait for a CPU is late.
my ($kept, $there) = split(/\|/, sql(q(SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY kept),
	percentile_disc(0.5) WITHIN GROUP (ORDER BY there) FROM seen)));
cmp_ok($there, '<', 4 * $kept, 'what has expired takes but a few times the space of what is kept');
diag("kept $kept, there $there") if $ENV{SEED};

done_testing();
