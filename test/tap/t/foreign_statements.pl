# Statements of others run through our hooks.  A session that has asked whether
# the database has the extension notices when that changes, and a procedure may
# end the transaction, and free the statement that calls it.  If this fails, our
# tables are not guarded in sessions that are older than the extension, or any
# role can crash the server.  foreign_statements.spec shows that the hooks do
# nothing else.  A build with assertions overwrites what is freed: there, a hook
# that reads a statement after the call is a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $node = new_server('foreign_statements', conf => 'max_prepared_transactions = 5');
my $dir = PostgreSQL::Test::Utils::tempdir;
$node->start;

sql(<<'EOF');
CREATE ROLE tenant LOGIN;
CREATE SCHEMA tenant AUTHORIZATION tenant;
CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
SET ROLE tenant;
CREATE TABLE tenant.t (a int);
CREATE FUNCTION tenant.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE PROCEDURE tenant.p(a int) LANGUAGE plpgsql AS $$
BEGIN
	ROLLBACK;
	FOR i IN 1..20 LOOP
		EXECUTE format('SELECT count(*), repeat(''x'', %s) FROM pg_class', i * 10);
	END LOOP;
END
$$;
EOF

sub script
{
	my ($name, $text) = @_;

	append_to_file("$dir/$name", $text);
	return "$dir/$name";
}

# --- a session that is older than the extension

my $session = session($node);
$session->query_safe('SET ROLE tenant');

sub tries
{
	my ($what, $ours) = @_;
	my $trigger = 'CREATE OR REPLACE TRIGGER t BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION tenant.f()';

	is($session->query_safe(sprintf("SELECT try('$trigger')", 'tenant.t')), 'done', "$what: a trigger on a table of the role's own");
	is($session->query_safe(sprintf("SELECT try('$trigger')", 'idempotency_internal.idem_key_0')), $ours, "$what: and on one of ours");
	return;
}

my $grant = 'GRANT USAGE ON SCHEMA idempotency_internal TO tenant; GRANT ALL ON ALL TABLES IN SCHEMA idempotency_internal TO tenant';
tries('no extension', '3F000');
sql("CREATE EXTENSION idempotency; $grant");
tries('the extension was created', '42501');
sql('DROP EXTENSION idempotency');
tries('it was dropped', '3F000');
sql("BEGIN; CREATE EXTENSION idempotency; $grant; PREPARE TRANSACTION 'create'");
tries('it was created by a transaction that is prepared', '3F000');
sql(q(COMMIT PREPARED 'create'));
tries('which has been committed', '42501');
wait_for_workers($node, 'postgres');
$session->quit;

# --- a statement that is freed while it is executed

my $call = script('call', "\\set a 1\nCALL tenant.p(:a);\n");
for my $protocol (qw(extended prepared))
{
	$node->command_ok([ 'pgbench', '-n', '-M', $protocol, '-t', '20', '-f', $call, $node->connstr('postgres') ],
		"a procedure that rolls back, in the protocol \"$protocol\"");
}

unlike(slurp_file($node->logfile), qr/was terminated by signal/, 'the server has not crashed');

done_testing();
