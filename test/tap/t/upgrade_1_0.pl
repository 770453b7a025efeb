# A database of 1.0.0 equals a fresh install after ALTER EXTENSION UPDATE, and
# has all its data.  Until then the library serves it as before, with its
# workers.  If this fails, an upgrade of the package is an outage, or leaves a
# database that is neither old nor new.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Catalog;
use PostgreSQL::Test::Utils;
use Receiver;
use Released;
use Server;
use Test::More;

use constant OLD => '1.0.0';
use constant HINT => 'The step in src/upgrade/ lacks what the install script has, or has more:';

install_released(OLD);
my $receiver = Receiver->start;
my $node = new_server('upgrade_1_0', conf => 'idempotency.sweep_interval = 50ms');

$node->start;
sql('CREATE ROLE shop_app LOGIN; CREATE ROLE auditor; CREATE ROLE shop_admin; CREATE ROLE other');
sql(q(CREATE EXTENSION idempotency VERSION ') . OLD . q('));
sql(q(SELECT idempotency_grant('shop_app'); GRANT SELECT ON outbox_subscriptions TO auditor));
sql(q(SELECT idempotency_grant_admin('shop_admin')));
subscribe($node, $receiver, '/ok/works', topics => "'{works}'");

# Runs once what an application does.
my $round = 0;
sub everything_works
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $n = ++$round;

	is(sql(qq(
		SELECT stock_receive('hat', 2) > 0;
		SET ROLE shop_app;
		SELECT outcome FROM idem_claim('t$n');
		SELECT outcome FROM idem_claim('t$n');
		SELECT token AS t FROM idem_claim('l$n', lease => '1 min') \\gset
		SELECT idem_complete('l$n', :t, '{"n": $n}');
		SELECT response FROM idem_claim('l$n', lease => '1 min');
		SELECT outbox_enqueue('works', '{"n": $n}', key => 'k') > 0;
		SELECT outcome FROM stock_reserve('hat', 1, 'r$n');
		SELECT stock_confirm('r$n');
		SELECT outcome FROM stock_reserve('hat', 1, 'lapses$n', ttl => '1 ms'))),
		join("\n", 't', 'claimed', 'completed', '', qq({"n": $n}), 't', 'reserved', 'done', 'reserved'), "$when: an application does what it does");
	$receiver->wait_for('works', events => $n);
	wait_until($node, "SELECT count(*) = 0 FROM stock_hold WHERE reservation = 'lapses$n'", "$when: reservations expire");
	is(sql(q(SELECT count(*) FROM stock_verify() WHERE NOT ok)), 0, "$when: stock is right");
	return;
}

everything_works('before the update');
is(sql(q(SELECT * FROM idempotency_status() WHERE state = 'error')), '', 'nothing is wrong meanwhile');
is(sql(q(SET ROLE shop_admin; SELECT idem_forget('l1'))), 't', 'a key is forgotten, without an audit');
sql(q(SELECT idem_claim('l1')));
sql('ALTER EXTENSION idempotency UPDATE');
is(error_code($node, 'postgres', q(SET ROLE shop_admin; SELECT idempotency_grant('other'))), '42501', 'an administrator cannot grant what is new');
is(sql(q(SET ROLE shop_admin; SELECT idem_forget('l1'), idem_fence('s'), idem_unfence('s'))), 't|t|t', 'he needs no new privilege for what there was');
is(sql(q(SELECT role, action, object FROM idempotency_audit WHERE role = 'shop_admin' ORDER BY at)),
	"shop_admin|idem_forget|l1\nshop_admin|idem_fence|s\nshop_admin|idem_unfence|s", 'and is in the audit');
sql(q(SELECT idempotency_grant_admin('shop_admin'); SET ROLE shop_admin; SELECT idempotency_grant('other')));
sql('DROP OWNED BY shop_admin CASCADE; DROP OWNED BY other');
sql(q(SELECT idempotency_grant('shop_app')));
wait_for_workers($node);
everything_works('after it');
is(sql(q(SELECT outcome FROM idem_claim('t1'); SELECT state FROM stock_reservation_status('r1'))), "completed\nconfirmed", 'what was there is there');

sql('CREATE DATABASE fresh');
$node->safe_psql('fresh', q(CREATE EXTENSION idempotency; SELECT idempotency_grant('shop_app'); GRANT SELECT ON outbox_subscriptions TO auditor));
same_catalog(catalog($node, 'postgres'), catalog($node, 'fresh'), 'an upgraded database has what a fresh one has', HINT);
unlike(slurp_file($node->logfile), qr/ (?:ERROR|FATAL|PANIC): ++(?!permission denied to grant)/, 'nothing in the log complains');

# --- default privileges do not reach internal objects that are new

sql('CREATE DATABASE defaults; CREATE ROLE nosy');
sql(q(CREATE EXTENSION idempotency VERSION ') . OLD . q('), 'defaults');
sql('CREATE TABLE was_there AS SELECT classid, objid FROM pg_depend', 'defaults');
sql("ALTER DEFAULT PRIVILEGES GRANT ALL ON $_ TO nosy", 'defaults') for qw(TABLES SEQUENCES FUNCTIONS);
sql('BEGIN; SAVEPOINT s; ALTER EXTENSION idempotency UPDATE; COMMIT', 'defaults');
is(sql(<<'END', 'defaults'), '', 'a role has no privileges on them');
SELECT d.classid::regclass, d.objid FROM pg_depend d
JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid AND e.extname = 'idempotency'
LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
WHERE d.deptype = 'e' AND (d.classid, d.objid) NOT IN (SELECT classid, objid FROM was_there)
	AND 'idempotency_internal'::regnamespace IN (p.pronamespace, c.relnamespace)
	AND (has_function_privilege('nosy', p.oid, 'EXECUTE') OR has_table_privilege('nosy', c.oid, 'SELECT'))
END

done_testing();
