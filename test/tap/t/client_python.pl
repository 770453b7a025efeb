# The Python library in clients/python does what its README says, with psycopg 3
# and asyncpg, behind uvicorn and in Django.  If this fails, an application in
# Python does work twice, loses an answer, or cannot install the library.
#
# Each test of clients/python/tests is one here.
#
# Needs: python3-psycopg python3-psycopg-pool python3-asyncpg python3-django python3-starlette
# Needs: python3-uvicorn python3-pytest python3-build python3-setuptools python3-wheel python3-venv
# Needs: mypy

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Cwd qw(abs_path);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;

use constant RUN_S => 1800;

my $client = abs_path("$FindBin::RealBin/../../../clients/python");
my $log = "$PostgreSQL::Test::Utils::log_path/client_python_pytest.log";

# A test restarts the server.
my $node = start_server('python', internal_path => 0);
sql('CREATE ROLE shop LOGIN');
sql(q(SELECT idempotency_grant('shop')));
sql('GRANT CREATE ON SCHEMA public TO shop');

my %env = (
	as_shop($node),
	ADMIN => sql('SELECT current_user'),
	PGDATA => $node->data_dir,
	PGLOG => $node->logfile,
	PYTHONPATH => "$client/src",
	COLUMNS => 200);
{
	local %ENV = (%ENV, %env);
	# Debian's Python; PATH may have another one first.
	IPC::Run::run([ qw(setpriv --pdeathsig KILL /usr/bin/python3 -B -m pytest -p no:cacheprovider -v --tb=short),
			"--rootdir=$client", "$client/tests" ],
		'<', \undef, '>', $log, '2>&1', IPC::Run::timeout(RUN_S));
}
my $status = $?;

my $output = slurp_file($log);
my ($collected) = $output =~ /collected (\d+) items$/m or diag($output);
my $reported = 0;
while ($output =~ /^(\S+::.+?) (PASSED|FAILED|ERROR)/mg)
{
	ok($2 eq 'PASSED', $1 =~ s{.*/}{}r);
	$reported++;
}
is($reported, $collected, 'all tests were run');
is($status, 0, 'and pytest says so');
diag(map { s/^/# /mgr } $output =~ /^=+ (?:FAILURES|ERRORS) =+\n(.*)/ms) if $status != 0;

done_testing();
