# Without shared_preload_libraries claims work, and other functions raise an
# error with a hint.  If this fails, events are accepted that are never sent.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $node = new_server('no_preload', preload => 0);
my ($code, $stdout, $stderr);

$node->start;
$node->psql('postgres', 'CREATE EXTENSION idempotency', stderr => \$stderr);
like($stderr, qr/(?:NOTICE|WARNING): .*preloaded.*\n.*HINT: .*shared_preload_libraries/,
	'CREATE EXTENSION works and says what is missing');

is(sql(q(
		SELECT outcome FROM idem_claim('a');
		SELECT outcome FROM idem_claim('a');
		SELECT token AS t FROM idem_claim('b', lease => '1 min') \gset
		SELECT idem_complete('b', :t, '{"ok": true}');
		SELECT outcome, response FROM idem_claim('b');
		SELECT idem_forget('b'))),
	"claimed\ncompleted\n\ncompleted|{\"ok\": true}\nt", 'claims work');

my %refused = (
	'outbox_enqueue' => "SELECT outbox_enqueue('t', '{}')",
	'INSERT INTO outbox_log' => "INSERT INTO outbox_log (topic, payload) VALUES ('t', '{}')",
	'outbox_subscribe' => "SELECT outbox_subscribe('s', 'https://example.com/')",
	'stock_receive' => "SELECT stock_receive('hat', 1)",
	'stock_reserve' => "SELECT stock_reserve('hat', 1, 'r')",
	'stock_reserve_many' => q(SELECT stock_reserve_many('{"hat": 1}', 'r')),
	'stock_transfer' => "SELECT stock_transfer('hat', 'cap', 1)",
	'stock_confirm' => "SELECT stock_confirm('r')",
	'stock_cancel' => "SELECT stock_cancel('r')",
);
for my $name (sort keys %refused)
{
	is(error_code($node, 'postgres', $refused{$name}), '55000', "$name is refused");
	$node->psql('postgres', $refused{$name}, stderr => \$stderr);
	like($stderr, qr/HINT: .*shared_preload_libraries/, "$name hints how");
}
is(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%'"), '0', 'there are no workers');

# --- preloaded afterwards

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->restart;
ok(wait_for_workers($node), 'after a restart with the library workers start');
is(error_code($node, 'postgres', $refused{outbox_enqueue}), '', 'and events are accepted');

# --- the extension stays when the library goes

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is(error_code($node, 'postgres', $refused{outbox_enqueue}), '55000',
	'without the library they are refused again');
sql('DROP EXTENSION idempotency');
pass('DROP EXTENSION works without it');

# --- Citus has to come first, and says so, but not before what

$node->stop;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency, citus'");
my $log_before = -s $node->logfile;
ok(!$node->start(fail_ok => 1), 'Citus after idempotency: the server does not start');
like(slurp_file($node->logfile, $log_before), qr/WARNING: .*citus comes after idempotency.*\n.*HINT: .*'citus, idempotency'/,
	'and the log says why');

done_testing();
