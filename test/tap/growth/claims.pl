# Claims: a call costs as much as the keys that it names, and a step of the
# sweeper a constant.  If this fails, claims slow down as keys accumulate.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use Test::More;

my $claimed = <<'SQL';
	SELECT count((idem_claim('key-' || i, scope => 's' || i % 2, lease => '1 h')).token) FROM generate_series(:from, :to) i;
SQL

growth('keys',
	base => "SELECT idem_fence('fenced')",
	rows => $claimed,
	calls => [
		[ 'claim', "SELECT idem_claim('new')", 'constant' ],
		[ 'claim again', "SELECT idem_claim('key-7', scope => 's1', wait => false)", 'constant' ],
		[ 'complete', "SELECT idem_complete('k', (idem_claim('k')).token)", 'constant' ],
		[ 'fail', "SELECT idem_fail('k', (idem_claim('k')).token)", 'constant' ],
		[ 'renew', "SELECT idem_renew('k', (idem_claim('k', lease => '1 h')).token)", 'constant' ],
		[ 'forget', "SELECT idem_forget('key-7', 's1')", 'constant' ],
		[ 'erase', "SELECT idem_erase('key-7', 's1')", 'constant' ],
		[ 'wait', "CALL idem_wait('unknown', timeout => '1 ms')", 'constant' ],
		[ 'fence', "SELECT idem_fence('s9')", 'constant' ],
		[ 'unfence', "SELECT idem_unfence('s9')", 'constant' ],
		[ 'a key of a scope', "SELECT * FROM idem_keys WHERE scope = 's1' AND key = 'key-7'", 'constant' ],
		[ 'a key', "SELECT * FROM idem_keys WHERE key = 'key-7'", 'constant' ],
		[ 'idem_fences', 'SELECT * FROM idem_fences', 'constant' ],
		[ 'idempotency_segments', 'SELECT * FROM idempotency_segments', 'constant' ],
		[ 'claim many', "SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'new-' || i FROM generate_series(1, :n) i))", 'linear' ],
		[ 'idem_stats', 'SELECT * FROM idem_stats', 'linear' ],
		[ 'idem_keys', 'SELECT count(*) FROM idem_keys', 'linear' ],
		[ 'export', "SELECT count(*) FROM idem_export('fenced')", 'linear' ],
	]);

growth('fences',
	rows => "SELECT count(idem_fence('f' || i)) FROM generate_series(:from, :to) i",
	calls => [
		[ 'claim', "SELECT idem_claim('new')", 'constant' ],
		[ 'fence', "SELECT idem_fence('s9')", 'constant' ],
		[ 'unfence', "SELECT idem_unfence('f7')", 'constant' ],
		[ 'idempotency_status', 'SELECT * FROM idempotency_status()', 'linear' ],
	]);

growth('keys',
	rows => $claimed,
	worker => 1,
	calls => [ [ 'a step of the sweeper', 'SELECT idempotency_internal.idem_expire(1000)', 'constant' ] ]);

# An old segment of several parts: few keys are in a page.
my $expired = 'now()';
my $some_live = "CASE WHEN i % 100 = 0 THEN now() + interval '1 h' ELSE now() END";

for my $step ([ 'a step of the sweeper', 'SELECT idempotency_internal.idem_expire(100)', $expired ],
	[ 'moving keys', 'SELECT idempotency_internal.idem_migrate(100, 0::smallint)', $some_live ],
	[ 'looking for keys to move', 'SELECT idempotency_internal.idem_migrate(100, 0::smallint)', $expired ],
	[ 'retiring', 'SELECT idempotency_internal.idem_retire(0::smallint)', $expired ])
{
	my ($what, $call, $expires) = @$step;

	growth('an old segment of keys',
		base => 'ALTER TABLE idempotency_internal.idem_key_0 SET (fillfactor = 10); SELECT idempotency_internal.idem_switch()',
		rows => <<"SQL",
	ALTER TABLE idempotency_internal.idem_key_0 DISABLE TRIGGER ALL;
	INSERT INTO idempotency_internal.idem_key_0 (token, expires_at, attempt, state, scope, key)
	SELECT i, $expires, 1, 'c', '', 'key-' || i FROM generate_series(:from, :to) i;
	ALTER TABLE idempotency_internal.idem_key_0 ENABLE ALWAYS TRIGGER idem_key_redirect;
SQL
		n => 8000,
		states => [ 'no statistics', 'old plans' ],
		worker => 1,
		calls => [ [ $what, $call, 'constant' ] ]);
}

# Rows that a restore has brought in while triggers were disabled; a tenth of
# them is in two segments.
my $restored = <<'SQL';
	ALTER TABLE idempotency_internal.idem_key_0 DISABLE TRIGGER ALL;
	ALTER TABLE idempotency_internal.idem_key_1 DISABLE TRIGGER ALL;
	INSERT INTO idempotency_internal.idem_key_0 (token, expires_at, attempt, state, scope, key)
	SELECT i, now() + interval '1 h', 1, 'c', '', 'key-' || i FROM generate_series(:from, :to) i;
	INSERT INTO idempotency_internal.idem_key_1 (token, expires_at, attempt, state, scope, key)
	SELECT i, now() + interval '1 h', 1, 'c', '', 'key-' || i FROM generate_series(:from, :to) i WHERE i % 10 = 0;
	ALTER TABLE idempotency_internal.idem_key_0 ENABLE TRIGGER ALL;
	ALTER TABLE idempotency_internal.idem_key_1 ENABLE TRIGGER ALL;
SQL

growth('restored keys',
	base => 'SELECT idempotency_internal.idem_switch()',
	rows => $restored,
	calls => [ [ 'repair', 'SELECT idempotency_repair()', 'linear' ] ]);

growth('restored keys',
	base => 'SELECT idempotency_internal.idem_switch()',
	rows => $restored,
	worker => 1,
	calls => [ [ 'repair', 'SELECT idempotency_internal.idem_repair(false)', 'linear' ] ]);

done_testing();
