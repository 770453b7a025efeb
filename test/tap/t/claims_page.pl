# What docs/claims.md shows is so: its SQL prints what stands beside it, and its
# excerpts are those of the recipes.  If this fails, the page teaches what does
# not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $docs = "$FindBin::RealBin/../../../docs";
my $page = slurp_file("$docs/claims.md");
my @recipes = map { slurp_file($_) } glob("$docs/recipes/*.js $docs/recipes/*.sql");
my $node = start_server('page');

sub blocks
{
	my ($language) = @_;
	return $page =~ /^```$language\n(.*?)^```$/gms;
}

# --- SQL: all of it in one session, as one who reads the page would type it.
#
# What a statement prints is in the comment behind it, or far to the right in
# the lines below it.

$node->safe_psql('postgres', 'CREATE DATABASE page');
my $script = join("\n", blocks('sql'));
my @expected = $script =~ /(?:;|^ {40,}) *-- (.+)$/gm;
my ($stdout, $stderr);
is($node->psql('page', $script, stdout => \$stdout, stderr => \$stderr,
		extra_params => [ '--field-separator', ' | ' ], on_error_stop => 1), 0, 'the SQL of the page runs')
  or diag $stderr;
is(join("\n", grep { $_ ne '' } split /\n/, $stdout), join("\n", @expected), 'and prints what stands beside it');

# --- excerpts of the recipes

for my $block (blocks('js'), grep { /deposit/ } blocks('sql'))
{
	my ($line) = $block =~ /^ *(.*)/;
	ok(scalar(grep { index($_, $block) >= 0 } @recipes), "of a recipe: $line");
}

# --- links

my %here = map { lc(tr/ /-/r) =~ tr/a-z0-9_-//cdr => 1 } $page =~ /^#+ (.*)$/gm;
my @broken = grep { /^#(.*)/ ? !$here{$1} : !-e "$docs/" . s/#.*//r }
  $page =~ /\]\((?!http)([^)]+)\)/g;
is("@broken", '', 'all links lead somewhere');

done_testing();
