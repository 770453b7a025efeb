# docs/scale-out.md is true, but for Citus, which has a suite of its own: its
# commands work in the order in which they stand there, and a request that was
# answered before a bucket has moved gets the same answer afterwards.  If this
# fails, a reader loses orders on the way to more than one server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Server;
use Test::More;

use constant { CUSTOMERS => 40 };

my $page = Page->load('scale-out.md');
my $node = start_server('page', internal_path => 0);
my $before_citus = bless { %$page, text => $page->{text} =~ s/^## Citus\n.*//msr }, 'Page';

$ENV{PATH} = $node->config_data('--bindir') . ":$ENV{PATH}";
local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port);

sub place_orders
{
	return $node->safe_psql('shop', join('', map { "SELECT place_order('r', 'customer $_', 'hat') ->> 'order';\n" } 1 .. CUSTOMERS));
}

# The blocks of SQL and of shell commands, in their order.
my $answers;
while ($before_citus->{text} =~ /^```(\w*)\n(.*?)^```$/gms)
{
	my ($language, $block) = ($1, $2);
	my ($line) = $block =~ /^ *(.*)/;

	next if $language eq 'mermaid' || $page->is_of_recipe($block) && pass("of a recipe: $line");
	if ($language eq 'sql')
	{
		my ($printed, $error) = Page::run($node, 'postgres', $block);
		is($error =~ s/^.*NOTICE:.*\n//mgr, '', "runs: $line");
		ok(Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
		  or diag "it prints: $printed";
	}
	else
	{
		is(system('bash', '-e', '-c', $block), 0, "runs: $line");
	}
	next unless $block =~ /shop_proxy|bucket|split/;
	$answers //= place_orders();
	is(place_orders(), $answers, 'orders that are repeated get the same answers') unless $block =~ /split/;
}
is($node->safe_psql("shop_$_", "SELECT count(*) > 0 FROM orders WHERE bucket % 4 = $_"), 't', "shard $_ has orders") for 0 .. 3;

$page->check_links;

done_testing();
