# The pages about stock are true: the SQL of each page runs in an empty database
# and prints the output shown beside it, and excerpts are those of the recipes.
# If this fails, a page shows what does not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Server;
use Test::More;

my $node = start_server('page', internal_path => 0);
my %page = map { $_ => Page->load("$_.md") } qw(stock how-to/stock reference/stock recipes/stock operations/stock);

for my $name (sort keys %page)
{
	$page{$name}->check_sql($node, $name =~ tr/a-z/_/cr);
	$page{$name}->check_excerpts($page{$name}->blocks('js'));
	$page{$name}->check_links;
}
$page{'recipes/stock'}->check_excerpts(grep { /FUNCTION reserve_stock/ } $page{'recipes/stock'}->blocks('sql'));

done_testing();
