# CONTRIBUTING.md is true: its commands work on a server that has the
# configuration shown, and the files that it names are there.  If this fails, a
# contributor gives up before the first change.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Page;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = abs_path("$FindBin::RealBin/../../..");
my $page = Page->load('../CONTRIBUTING.md');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = PostgreSQL::Test::Cluster->new('contributing');

$node->init;
$node->append_conf('postgresql.conf', join('', $page->blocks('conf')));
$node->start;
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;

# Building and installing comes first here, too, in test/run.  All of
# installcheck is run by installcheck.pl.  Servers of their own are not made
# from the template of test/run, which a contributor has not.
delete local $ENV{CLUSTER_TEMPLATE};
my @commands = grep { !/ install$/ && $_ ne 'make installcheck' } map { split /\n/ } $page->blocks('sh');
is(scalar(@commands), 3, 'the page has commands');
for my $command (@commands)
{
	my ($output, $passed);

	# The programs of this server come first in PATH.
	$command =~ s/^make/make PG_CONFIG=pg_config -C $dir -f $source\/Makefile/;
	$passed = IPC::Run::run([ 'sh', '-c', $command ], '>', \$output, '2>&1');
	ok($passed, $command) or diag($output);
	unlike($output, qr/All 0 tests|NOTESTS/, 'and runs a test');
}

my @paths = map { /^`?([a-z\/]+)`?$/ ? $1 : () } map { split /[`, \[\]]+/ } $page->{text} =~ /^\| [^|]* \| ([^|]*) \| `/mg;
cmp_ok(scalar(@paths), '>', 4, 'it names places of tests');
is(join(' ', grep { !-d "$source/$_" } grep { m{/} || $_ eq 'sql' } @paths), '', 'which are there');
$page->check_links;

done_testing();
