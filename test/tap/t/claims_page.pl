# docs/claims.md is true: its SQL prints the output shown beside it, and its
# excerpts are those of the recipes.  If this fails, the page shows what does
# not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Server;
use Test::More;

my $page = Page->load('claims.md');
my $node = start_server('page', internal_path => 0);

# Everything runs in one session, as readers of the page would type it.
sql('CREATE DATABASE page');
my $script = join("\n", $page->blocks('sql'));
my ($printed, $error) = Page::run($node, 'page', $script);
is($error, '', 'the SQL of the page runs');
is($printed, join("\n", Page::expected($script)), 'and prints what stands beside it');

$page->check_columns($node, 'page', $_) for qw(idem_key idem_keys idem_stats);
$page->check_excerpts($page->blocks('js'), grep { /deposit/ } $page->blocks('sql'));
Page->load($_)->check_links for qw(claims.md reference.md);

done_testing();
