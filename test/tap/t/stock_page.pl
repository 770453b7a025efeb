# The pages about stock are true: the SQL of each page runs in an empty database
# and prints the output shown beside it, excerpts are those of the recipes, and
# functions, views and settings are as described.  If this fails, a page shows
# what does not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Server;
use Test::More;

my $node = start_server('page', internal_path => 0);
my %page = map { $_ => Page->load("$_.md") } qw(stock how-to/stock reference/stock recipes/stock operations/stock);
my $settings = sql(q(
	SELECT name, coalesce(nullif(current_setting(name), ''), 'empty: none') FROM pg_settings
	WHERE name LIKE 'idempotency.stock%' OR name LIKE 'idempotency.reservation%' ORDER BY name COLLATE "C"));

# The settings of stock that the reference names, with their defaults on the
# server.
sub documented_settings
{
	my %default = Page->load('reference/settings.md')->{text} =~
	  /^\| `(idempotency\.(?:stock|reservation)\w*)` \| [^|]+ \| ([^|]+?) \| /gm;
	return join("\n", map { "$_|" . $default{$_} =~ s/ (min|d|MB)(?:ays?)?$/$1/r } sort keys %default);
}

for my $name (sort keys %page)
{
	$page{$name}->check_sql($node, $name =~ tr/a-z/_/cr);
	$page{$name}->check_excerpts($page{$name}->blocks('js'));
	$page{$name}->check_links;
}
$page{'recipes/stock'}->check_excerpts(grep { /FUNCTION reserve_stock/ } $page{'recipes/stock'}->blocks('sql'));

my $reference = $page{'reference/stock'};
$reference->check_signatures($node, 'reference_stock', 'stock');
$reference->check_columns($node, 'reference_stock', $_) for qw(stock_levels stock_holds stock_waiting stock_history);
is(documented_settings(), $settings, 'settings and their defaults');

done_testing();
