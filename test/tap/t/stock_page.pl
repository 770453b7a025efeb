# docs/stock.md is true: its SQL prints the output shown, its excerpts are
# those of the recipes, and functions, views and settings are as described.  If
# this fails, the page shows what does not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Server;
use Test::More;

my $page = Page->load('stock.md');
my $node = start_server('page', internal_path => 0);

sql('CREATE DATABASE shop');
my $settings = sql(q(
	SELECT name, coalesce(nullif(current_setting(name), ''), 'empty: none') FROM pg_settings
	WHERE name LIKE 'idempotency.stock%' OR name LIKE 'idempotency.reservation%' ORDER BY name COLLATE "C"));

# The settings that the page names, with their defaults on the server.
sub documented_settings
{
	my %default = $page->{text} =~ /^\| `(idempotency\.\w+)` \| [^|]+ \| ([^|]+?) \| /gm;
	return join("\n", map { "$_|" . $default{$_} =~ s/ (min|d|MB)(?:ays?)?$/$1/r } sort keys %default);
}

# Does a block only read what the sweeper does, which needs time?
sub only_looks
{
	my ($sql) = @_;
	return !grep { !/\A\s*SELECT [^(]*?\bFROM (?:idempotency_internal\.)?stock_|\A\s*SELECT .*FROM (?:outbox_log|(?:idempotency_internal\.)?stock_)/s } grep { /\S/ } split /;.*\n?/, $sql;
}

# New sessions use the changed settings.
sub wait_for_reload
{
	my ($before) = @_;
	return $node->poll_query_until('shop', "SELECT pg_conf_load_time() > '$before'");
}

for my $block (grep { !$page->is_of_recipe($_) } $page->blocks('sql'))
{
	my ($line) = $block =~ /^ *(.*)/;
	my $loaded = $node->safe_psql('shop', 'SELECT pg_conf_load_time()');
	my ($printed, $error) = only_looks($block)
	  ? Page::run_until_expected($node, 'shop', $block)
	  : Page::run($node, 'shop', $block);

	is($error, '', "runs: $line");
	ok(Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
	wait_for_reload($loaded) if $block =~ /pg_reload_conf/;
}

$page->check_signatures($node, 'shop', 'stock');
$page->check_columns($node, 'shop', $_) for qw(stock_levels stock_holds stock_waiting stock_history);

is(documented_settings(), $settings, 'settings and their defaults');

$page->check_excerpts($page->blocks('js'));
$page->check_links;

done_testing();
