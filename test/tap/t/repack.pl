# pg_repack refuses our tables at once, changes nothing, and repacks the user's
# own tables: it collects changes by triggers, and our writes fire none.  The
# alternatives lose nothing either.  If this fails, everything that is written
# while a tool rewrites our tables is lost: keys, events, stock.
#
# Needs: postgresql-MAJOR-repack

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { LOAD_S => 15, CLIENTS => 4 };

my $receiver = Receiver->start;
my $node = start_server('repack');

# Runs pg_repack; returns its output, after whether it has succeeded.
sub repack
{
	my ($output);
	my $done = IPC::Run::run([ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', 'postgres', @_ ], '>', \$output, '2>&1');
	return ($done, $output);
}

sql('CREATE EXTENSION pg_repack; CREATE TABLE done (id bigserial PRIMARY KEY); SELECT stock_receive(\'hat\', 1000000)');
subscribe($node, $receiver, '/ok/all');

# Each transaction counts itself in a table of the user.
my $script = PostgreSQL::Test::Utils::tempdir() . '/load';
append_to_file($script, <<'EOS');
BEGIN;
INSERT INTO done DEFAULT VALUES RETURNING id \gset
SELECT outcome FROM idem_claim('key ' || :id);
SELECT outbox_enqueue('t', jsonb_build_object('n', :id), key => 'k' || :id % 10);
SELECT outcome FROM stock_reserve('hat', 1, 'order ' || :id);
COMMIT;
\set half :id % 2
\if :half
SELECT stock_confirm('order ' || :id);
\endif
EOS
my $load_output;
my $load = IPC::Run::start([ 'pgbench', '-n', '-c', CLIENTS, '-T', LOAD_S, '-f', $script, $node->connstr('postgres') ],
	'>', \$load_output, '2>&1');
wait_until($node, 'SELECT count(*) > 0 FROM done', 'the load has begun');

my @tables = split(/\n/, sql(q(
	SELECT format('%s.%I', c.relnamespace::regnamespace, c.relname) FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'idempotency'
	WHERE c.relkind = 'r' ORDER BY 1)));
cmp_ok(scalar @tables, '>', 10, 'the extension has tables');
my $files = "SELECT string_agg(pg_relation_filenode(t)::text, ' ' ORDER BY t) FROM unnest('{@{[ join(',', @tables) ]}}'::regclass[]) t";
my $before = sql($files);

my $refused = qr/cannot create a trigger on table "\w+" of extension idempotency.*--exclude-extension=idempotency/s;
# pg_repack ignores tables without a key.
for my $table (grep { sql("SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = '$_'::regclass AND indisprimary)") eq 't' } @tables)
{
	my ($done, $output) = repack('-t', $table);
	ok(!$done, "$table is refused");
	like($output, $refused, "$table: and it is said why, and what to do");
}
my ($done, $output) = repack();
ok(!$done, 'a database with our tables is refused');
like($output, $refused, 'likewise');
is(sql($files), $before, 'our tables are where they were');
is(sql(q(SELECT count(*) FROM pg_trigger WHERE tgname = 'repack_trigger')), '0', 'and without triggers');
is(sql(q(SELECT count(*) FROM pg_class WHERE relnamespace = 'repack'::regnamespace AND relkind = 'r')), '0',
	'nothing is left behind');

my $mine = sql(q(SELECT pg_relation_filenode('done')));
($done, $output) = repack('--exclude-extension=idempotency');
ok($done, 'a database without our tables is repacked') or diag($output);
isnt(sql(q(SELECT pg_relation_filenode('done'))), $mine, 'the table of the user');
($done, $output) = repack('--only-indexes', map { ('-t', "idempotency_internal.$_") } qw(idem_key_0 stock_log stock_item));
ok($done, 'indexes of ours are repacked, which takes no triggers') or diag($output);

# --- the alternatives

for my $table (@tables)
{
	sql($_) for "REINDEX TABLE CONCURRENTLY $table", "VACUUM FULL $table";
}
sql("CLUSTER $_") for 'idem_key_0 USING idem_key_0_pkey', 'stock_log USING stock_log_pkey';

$load->finish;
unlike($load_output, qr/aborted|ERROR/, 'no client has failed');
my $count = sql('SELECT count(*) FROM done');
diag("$count transactions");
cmp_ok($count, '>', 100, 'they have done something');
is(sql('SELECT count(*) FROM idem_key'), $count, 'every key is known');
is(sql('SELECT count(*) FROM outbox_log'), $count, 'every event is in the log');
$receiver->wait_for('all', events => $count);
is(sql(q(SELECT string_agg(id::text, ' ' ORDER BY id) FROM done)), $receiver->sorted_numbers('all'), 'and is delivered');
is(sql(q(SELECT available, reserved, confirmed FROM stock_levels)),
	sql(q(SELECT 1000000 - count(*), count(*) FILTER (WHERE id % 2 = 0), count(*) FILTER (WHERE id % 2 = 1) FROM done)),
	'every piece is accounted for');
is(sql('SELECT bool_and(ok) FROM stock_verify()'), 't', 'in the counters, too');

# --- triggers of users

is(error_code($node, 'postgres', "CREATE TRIGGER t BEFORE INSERT ON $_ FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"),
	'55000', "no trigger on $_, be it a superuser's") for @tables;
is(error_code($node, 'postgres', 'CREATE TRIGGER t BEFORE UPDATE ON done FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()'),
	'', 'other tables have the triggers that one likes');
is(error_code($node, 'postgres', 'CREATE TABLE refers (sku text COLLATE "C" REFERENCES stock_item (sku))'),
	'', 'a superuser may refer to our tables');
is(error_code($node, 'postgres', 'DROP TRIGGER idem_key_redirect ON idem_key_0;'
		  . ' CREATE TRIGGER idem_key_redirect BEFORE INSERT ON idem_key_0 FOR EACH ROW EXECUTE FUNCTION idem_key_redirect()'),
	'', 'and put a trigger of ours back');

done_testing();
