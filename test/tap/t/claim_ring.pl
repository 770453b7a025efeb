# Clients claim, finish, renew and forget the same few keys, with leases and
# ttls that end all the time.  They are stopped for moments at any point, while
# others turn the ring of segments as fast as possible and the server crashes
# from time to time.  A ledger, written in the same transactions, records the
# owner of each key and for how long.  If this fails while the isolation tests
# pass, there is another way to two owners of one key, or to an owner that is
# wrongly refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;
use Time::HiRes qw(time usleep);

use constant {
	CLIENTS => 6,
	WRITERS => 2,
	TURNERS => 2,
	KEYS => 12,
	ROUND_S => 2,
	PROGRESS => 20,				# at least so many of everything
	MORE_ROUNDS_MAX => 60,
};

my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
diag("seed $seed (repeat with SEED=$seed)") if $ENV{SEED};

# Only this test turns the ring.
my $node = start_server('claim_ring', conf => <<EOF);
idempotency.databases = 'none'
synchronous_commit = off
log_statement = none
deadlock_timeout = 50ms
EOF

# --- the ledger

# A key belongs to its owner from the claim until the lease or the ttl ends: two
# such periods of one key must not overlap.
sql(<<'SQL');
CREATE TABLE hold (
	key        integer,
	token      bigint PRIMARY KEY,
	since      timestamptz,
	during     tstzrange,
	expires_at timestamptz,
	completed  boolean DEFAULT false,
	forgotten  boolean DEFAULT false,
	EXCLUDE USING gist (int4range(key, key, '[]') WITH &&, during WITH &&));
CREATE TABLE tally (what text);

CREATE VIEW key_row AS SELECT * FROM idem_key_0
	UNION ALL SELECT * FROM idem_key_1 UNION ALL SELECT * FROM idem_key_2;

-- No row may have been written into a segment after it was closed.
CREATE FUNCTION inspect() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	closed  record;
	written boolean;
BEGIN
	FOR closed IN SELECT slot, quiet_xid FROM idem_ring WHERE quiet_xid IS NOT NULL LOOP
		EXECUTE format('SELECT EXISTS (SELECT FROM idem_key_%s k JOIN idem_ring r ON r.slot = %1$s
			WHERE r.quiet_xid = $1 AND k.xmin::text::bigint >= $1::text::bigint)', closed.slot)
			INTO written USING closed.quiet_xid;
		IF written THEN
			RAISE EXCEPTION 'something was written into an old segment';
		END IF;
	END LOOP;
END
$$;

CREATE FUNCTION since_until(since timestamptz, until timestamptz) RETURNS tstzrange
	LANGUAGE sql AS 'SELECT tstzrange(since, greatest(since, until))';

-- Records a claim, or checks that an answer is the owner's.
CREATE FUNCTION enter(k integer, outcome idem_outcome, t bigint, attempt integer, response jsonb)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF outcome = 'completed' AND response IS NOT NULL AND NOT EXISTS (
		SELECT FROM hold h WHERE h.key = k AND h.token = response::bigint AND h.completed)
	THEN
		RAISE EXCEPTION 'key % was answered %, which nobody has said', k, response;
	END IF;
	IF outcome <> 'claimed' THEN
		RETURN;
	END IF;
	INSERT INTO hold (key, token, since, during, expires_at)
		SELECT k, t, clock_timestamp(),
			since_until(clock_timestamp(), coalesce(r.lease_until, r.expires_at)), r.expires_at
		FROM key_row r WHERE r.key = k::text AND r.token = t;
	-- A batch may take longer than its own claim lasts, and take it over.
	IF NOT FOUND AND NOT EXISTS (SELECT FROM key_row r WHERE r.key = k::text AND r.token > t) THEN
		RAISE EXCEPTION 'key % was claimed with token %, and is not there', k, t;
	END IF;
	IF attempt > 1 THEN
		INSERT INTO tally VALUES ('takeover');
	END IF;
END
$$;

CREATE FUNCTION claim(k integer, lease interval, ttl interval, wait boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	c record;
BEGIN
	SELECT * INTO c FROM idem_claim(k::text, lease => lease, ttl => ttl, wait => wait);
	PERFORM enter(k, c.outcome, c.token, c.attempt, c.response);
	RETURN coalesce(c.token, 0);
END
$$;

CREATE FUNCTION claim_many(keys integer[], lease interval, ttl interval, wait boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM idem_claim_many(keys::text[], lease => lease, ttl => ttl, wait => wait) LOOP
		PERFORM enter(c.key::integer, c.outcome, c.token, c.attempt, c.response);
	END LOOP;
END
$$;

-- Finishes a claim, perhaps too late.  If the owner is refused, the key must
-- have been taken over, forgotten or expired.
CREATE FUNCTION finish(k integer, t bigint, how text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	h hold;
BEGIN
	IF t = 0 THEN
		RETURN;
	END IF;
	CASE how
		WHEN 'complete' THEN
			PERFORM idem_complete(k::text, t, to_jsonb(t));
			UPDATE hold SET completed = true, during = since_until(since, r.expires_at), expires_at = r.expires_at
				FROM key_row r WHERE r.key = k::text AND hold.token = t AND r.token = t;
		WHEN 'renew' THEN
			PERFORM idem_renew(k::text, t, '5 ms');
			UPDATE hold SET during = since_until(since, r.lease_until), expires_at = r.expires_at
				FROM key_row r WHERE r.key = k::text AND hold.token = t AND r.token = t;
		WHEN 'fail' THEN
			PERFORM idem_fail(k::text, t);
			UPDATE hold SET during = since_until(since, clock_timestamp()) WHERE token = t;
	END CASE;
	IF NOT FOUND THEN
		RAISE EXCEPTION '% of key % by token % went nowhere', how, k, t;
	END IF;
	INSERT INTO tally VALUES (how);
EXCEPTION WHEN SQLSTATE 'ID001' OR SQLSTATE 'ID002' THEN
	INSERT INTO tally VALUES ('refusal');
	SELECT * INTO h FROM hold WHERE token = t;
	IF NOT h.forgotten AND h.expires_at > clock_timestamp()
		AND NOT EXISTS (SELECT FROM hold o WHERE o.key = k AND o.token > t)
	THEN
		RAISE EXCEPTION 'the owner of key % was refused: %', k, SQLERRM;
	END IF;
END
$$;

-- Inserts, claims again and fails keys that no other client uses, each with a
-- transaction id of its own.
CREATE FUNCTION write_own(prefix text, count integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	own text;
	t   bigint;
BEGIN
	FOR i IN 1 .. count LOOP
		own := CASE WHEN i % 3 = 0 THEN prefix || random() ELSE prefix || i % 5 END;
		BEGIN
			SELECT token INTO STRICT t FROM idem_claim(own, lease => '1 us', ttl => '1 us') WHERE outcome = 'claimed';
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		BEGIN
			PERFORM idem_fail(own, t);
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		-- A transaction knows what it has completed, so it uses another key.
		own := prefix || 'completed' || random();
		BEGIN
			SELECT token INTO STRICT t FROM idem_claim(own, lease => '1 us', ttl => '1 us') WHERE outcome = 'claimed';
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		BEGIN
			PERFORM idem_complete(own, t, ttl => '1 us');
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END
$$;

CREATE FUNCTION forget(k integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_forget(k::text);
	UPDATE hold SET forgotten = true, during = since_until(since, clock_timestamp())
		WHERE key = k AND during @> clock_timestamp();
	UPDATE hold SET forgotten = true
		WHERE key = k AND NOT forgotten AND expires_at > clock_timestamp();
	INSERT INTO tally VALUES ('forget');
END
$$;
SQL

# --- what the clients do

my %scripts = (
	# Claims without a lease, some of them in long transactions, some rolled
	# back, some only to a savepoint.
	transactional => [ 4, <<'END' ],
\set ttl random(1, 30)
\set dice random(1, 10)
\set pause random(1, 4)
BEGIN;
SAVEPOINT s;
SELECT claim(:key, NULL, :ttl * interval '1 ms', :wait);
\if :dice <= 3
ROLLBACK TO s;
SELECT claim(:key, NULL, :ttl * interval '1 ms', :wait);
\endif
\if :dice <= 4
\sleep :pause ms
\endif
\if :dice <= 8
COMMIT;
\else
ROLLBACK;
\endif
END
	# A lease that may end before the owner comes back.
	leased => [ 6, <<'END' ],
\set lease random(1, 10)
\set ttl random(1, 60)
\set dice random(1, 10)
\set pause random(0, 6)
SELECT claim(:key, :lease * interval '1 ms', :ttl * interval '1 ms', :wait) AS token \gset
\if :token > 0
\sleep :pause ms
\if :dice <= 3
SELECT finish(:key, :token, 'renew');
\sleep :pause ms
\endif
\if :dice <= 5
SELECT finish(:key, :token, 'complete');
\elif :dice <= 8
SELECT finish(:key, :token, 'fail');
\endif
\endif
END
	# All steps in one long transaction.
	owner => [ 2, <<'END' ],
\set pause random(0, 6)
BEGIN;
SELECT claim(:key, '5 ms', '30 ms', :wait) AS token \gset
\sleep :pause ms
SELECT finish(:key, :token, 'renew');
\sleep :pause ms
SELECT finish(:key, :token, 'complete');
COMMIT;
END
	many => [ 2, <<'END' ],
\set ttl random(1, 20)
\set other random(1, :keys)
SELECT claim_many(ARRAY[:key, :other, :key, 1], CASE WHEN :wait THEN '5 ms'::interval END, :ttl * interval '1 ms', :wait);
END
	forget => [ 1, <<'END' ],
SELECT forget(:key);
END
);

# So one of these keys is being written at nearly every moment.
my $own = <<'END';
SELECT write_own(:client_id || ' ', 30);
\sleep 1 ms
END

my $turn = <<'END';
SELECT idem_switch()::integer AS switched \gset
SELECT idem_migrate(:rows) AS migrated \gset
SELECT inspect();
SELECT idem_retire()::integer AS retired \gset
SELECT idem_truncate()::integer AS truncated \gset
INSERT INTO tally SELECT what FROM (VALUES ('switch', :switched), ('migrate', :migrated),
	('retire', :retired), ('truncate', :truncated)) AS t (what, times) WHERE times > 0;
\sleep :pause us
END

sub script_file
{
	my ($name, $script) = @_;
	my $file = $node->basedir . "/$name.pgbench";

	append_to_file($file, $script);
	return $file;
}
my $dice = "\\set key random(1, :keys)\n\\set wait random(0, 3)\n\\set wait :wait > 0\n";
my %groups = (
	client => [ CLIENTS, map { ('--file' => script_file($_, $dice . $scripts{$_}[1]) . "\@$scripts{$_}[0]") } sort keys %scripts ],
	writer => [ WRITERS, '--file' => script_file('own', $own) ],
	turner => [ TURNERS, '--file' => script_file('turn', "\\set pause random(0, 3000)\n\\set rows random(1, 20)\n$turn") ],
);

sub start_pgbench
{
	my ($group, $output) = @_;
	my ($clients, @files) = @{ $groups{$group} };
	return IPC::Run::start(
		[
			'pgbench', '--no-vacuum', '--client' => $clients, '--time' => ROUND_S,
			'--random-seed' => int(rand(2**31)), '--define' => 'keys=' . KEYS, @files,
			$node->connstr('postgres') . " application_name=$group"
		],
		'>' => \my $summary, '2>' => $output);
}

# Until then, stops random processes for some milliseconds at any point of their
# work.
sub freeze_until
{
	my ($end) = @_;
	my @pids = map { [ split(/ /, sql("SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE application_name = '$_'")) ] }
	  qw(client writer);

	while (time() < $end)
	{
		my $kind = $pids[ rand() < 0.3 ? 0 : 1 ];
		my $pid = $kind->[ rand(@$kind) ];

		kill('STOP', $pid);
		usleep(rand(10000));
		kill('CONT', $pid);
		usleep(1000);
	}
	return;
}

# All errors except deadlocks, which a transaction with several keys may cause,
# and those of the crash.
sub errors
{
	my ($output) = @_;
	return grep { /ERROR: / && !/deadlock detected/ } split(/\n/, $output);
}

sub round
{
	my ($name, $crash) = @_;
	my %said = map { $_ => '' } keys %groups;
	my $start = time();
	my @running = map { start_pgbench($_, \$said{$_}) } sort keys %groups;

	sql('SELECT 1');
	freeze_until($start + ROUND_S * ($crash ? 0.6 + rand(0.3) : 0.9));
	$crash->() if $crash;
	$_->finish for @running;
	is(join("\n", map { errors($said{$_}) } sort keys %said), '', "$name: nobody is wronged");
	unless ($crash)
	{
		is(join(' ', map { $_->full_result(0) } @running), '0 0 0', "$name: the clients come to an end");
	}
	return;
}

round('immediate stop', sub { $node->stop('immediate') });
$node->start;
round('kill -9', sub {
	kill('KILL', sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'"));
});
$node->poll_query_until('postgres', 'SELECT true');
round('to the end');

# On a busy machine the ring turns more slowly.
my @steps = qw(takeover complete renew fail forget refusal switch migrate retire truncate);

sub did_too_little
{
	return grep { sql("SELECT count(*) FROM tally WHERE what = '$_'") <= PROGRESS } @steps;
}

for my $more (1 .. MORE_ROUNDS_MAX)
{
	last unless did_too_little();
	round("once more, $more");
}

# --- results

is(sql(<<'END'), 't|t', 'of each key tokens only rise, and no two owners have it at once');
SELECT bool_and(token > before), NOT EXISTS (
	SELECT FROM hold a, hold b WHERE a.key = b.key AND a.token < b.token AND a.during && b.during)
FROM (SELECT token, lag(token, 1, 0::bigint) OVER (PARTITION BY key ORDER BY since) AS before FROM hold) t
END
is(sql('SELECT count(*) FROM key_row GROUP BY key HAVING count(*) FILTER (WHERE expires_at > clock_timestamp()) > 1'), '',
	'each key has one row');
cmp_ok(sql('SELECT count(*) FROM hold'), '>', 20 * PROGRESS, 'there were claims');
for my $what (@steps)
{
	cmp_ok(sql("SELECT count(*) FROM tally WHERE what = '$what'"), '>', PROGRESS, "there was much to $what");
}

# Without clients, the ring stops turning.
$node->append_conf('postgresql.conf', "idempotency.databases = ''\nidempotency.sweep_interval = 50ms");
$node->reload;
wait_until($node, q(SELECT count(*) FILTER (WHERE state = 'empty') = 2 FROM idem_ring), 'what has expired is forgotten');
is(sql('SELECT count(*) FROM idem_key'), '0', 'all of it');
is(sql("SELECT outcome FROM idem_claim('1')"), 'claimed', 'and keys can be claimed');
diag(sql('SELECT what, count(*) FROM tally GROUP BY 1 ORDER BY 1'), "\nholds ", sql('SELECT count(*) FROM hold')) if $ENV{SEED};

done_testing();
