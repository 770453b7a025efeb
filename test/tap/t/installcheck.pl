# "make installcheck" passes on a server with default settings where only the
# library is preloaded, also from another directory.  If this fails, packagers
# and users see failures without a cause.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = abs_path("$FindBin::RealBin/../../..");
my $dir = PostgreSQL::Test::Utils::tempdir();

my $node = PostgreSQL::Test::Cluster->new('installcheck');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->start;
is($node->safe_psql('postgres', 'SHOW max_prepared_transactions'), '0', 'the server has its defaults');

my $output;
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
# The programs of this server come first in PATH.
my $passed = IPC::Run::run([ qw(make installcheck PG_CONFIG=pg_config -C), $dir, '-f', "$source/Makefile" ],
	'>', \$output, '2>&1');
ok($passed, 'make installcheck');
for ('.', 'output_iso')
{
	diag(slurp_file("$dir/$_/regression.diffs")) if !$passed && -s "$dir/$_/regression.diffs";
}

my @ran = $output =~ /^(?:ok \d+ +[-+] |test )(\w+)/mg;
my @regress = map { m{([^/]+)\.sql$} } glob("$source/sql/*.sql");
my %ran = map { $_ => 1 } @ran;
is(join(' ', grep { !$ran{$_} } @regress), '', 'every regress test was run');
cmp_ok(@ran - @regress, '>=', 10, 'and some with several sessions');

done_testing();
