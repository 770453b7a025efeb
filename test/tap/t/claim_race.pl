# Eight clients claim the same keys at the same moment, thousands of times.  If
# this fails, two of them own one key.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;

use constant { CLIENTS => 8, KEYS => 2000 };

my $node = start_server('claim_race', conf => 'synchronous_commit = off');

sql('CREATE TABLE ledger (mode text, key text, token bigint)');

# All clients claim the same keys in the same order.  $script claims the key in
# :key and writes each granted claim to the ledger.
sub race
{
	my ($name, $script) = @_;
	my $file = $node->basedir . "/$name.pgbench";

	PostgreSQL::Test::Utils::append_to_file($file, "\\set key :key + 1\n$script\n");
	$node->command_ok(
		[
			'pgbench', '--no-vacuum', '--client' => CLIENTS, '--jobs' => 2,
			'--transactions' => KEYS, '--define' => 'key=0', '--file' => $file,
			'postgres'
		],
		"$name: the clients come to an end");
	return;
}

sub owners
{
	my ($mode) = @_;
	return sql("SELECT count(*), count(DISTINCT key), count(DISTINCT token) FROM ledger WHERE mode = '$mode'");
}

race('commit', <<'END');
INSERT INTO ledger SELECT 'commit', :key, token FROM idem_claim('commit ' || :key) WHERE outcome = 'claimed';
END
is(owners('commit'), join('|', (KEYS) x 3), 'each key has one owner');

# Half of the claims are rolled back; the next claimer owns the key.
race('rollback', <<'END');
\set back random(0, 1)
BEGIN;
INSERT INTO ledger SELECT 'rollback', :key, token FROM idem_claim('rollback ' || :key) WHERE outcome = 'claimed';
\if :back
ROLLBACK;
\else
COMMIT;
\endif
END
my ($claims, $keys, $tokens) = split /\|/, owners('rollback');
is($claims, $keys, 'each key has one owner at most, though many gave it back');
is($tokens, $keys, 'with a token of its own');
cmp_ok($keys, '>', 0.9 * KEYS, 'and few keys were given back by all');

# Leases end at once: each claim takes the key over from the one before.
race('takeover', <<'END');
INSERT INTO ledger SELECT 'takeover', attempt, token FROM idem_claim('hot', 'takeover', lease => '1 us', wait => :key % 2 = 0) WHERE outcome = 'claimed';
END
is(sql(<<'END'), 't|t', 'attempts and tokens of a key that is taken over only rise');
SELECT count(*) = count(DISTINCT key),
	bool_and(token > before)
FROM (SELECT key, token, lag(token, 1, 0::bigint) OVER (ORDER BY key::bigint) AS before
	FROM ledger WHERE mode = 'takeover') t
END

done_testing();
