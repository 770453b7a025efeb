# docs/outbox.md is true: its SQL prints the output shown, with the receiver
# that the page names, its excerpts are those of the recipes, and functions and
# views are as described.  If this fails, the page shows what does not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Extension;
use Page;
use PostgreSQL::Test::Cluster;
use Program;
use Receiver;
use Server;
use Test::More;

my $page = Page->load('outbox.md');
my $node = start_server('page', internal_path => 0);
my $elsewhere = Receiver->start;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $receiver;

sql('CREATE DATABASE shop');
sql('CREATE DATABASE shipping');
install_extension($node, 'pg_jsonschema');
sql('CREATE EXTENSION plpython3u', 'shop');

# The page's own receiver is started as soon as it has a secret.
sub start_receiver
{
	my ($secret) = @_;
	prepare_recipe($node, 'webhooks.sql', 'shipping');
	$receiver = start_recipe('webhooks.js', as_shop($node, 'shipping'),
		PORT => $port, WEBHOOK_SECRET => $secret)->wait_for_start('listening');
	return;
}

# Does a block only read what the relay does, which needs time?
sub only_looks
{
	my ($sql) = @_;
	return $sql =~ /\A(?:SELECT [^;(]*? FROM outbox_(?:subscriptions|deliveries|dead|attempts)\b[^;]*;[^;]*)\z/s;
}

for my $block ($page->blocks('sql'))
{
	my ($line) = $block =~ /^ *(.*)/;
	my $sql = $block =~ s/127\.0\.0\.1:8080/127.0.0.1:$port/r;

	$sql =~ s{https://example\.com/}{$elsewhere->url('/ok/')}ge;
	my ($printed, $error) = only_looks($sql)
	  ? Page::run_until_expected($node, 'shop', $sql)
	  : Page::run($node, 'shop', $sql);
	is($error, '', "runs: $line");
	ok(Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
	start_receiver($printed) if $block =~ /\Q127.0.0.1:8080\E/ && !$receiver;
}

is($node->safe_psql('shipping', 'SELECT order_id, item, quantity FROM parcels WHERE order_id = 1'), '1|hat|2',
	'the receiver of the page has done its work');
like($receiver->line(webhook_id($node, 2, 'shop')), qr/order.placed claimed$/, 'and said so');

$page->check_signatures($node, 'shop', 'outbox');
$page->check_columns($node, 'shop', $_) for qw(outbox_subscriptions outbox_dead outbox_deliveries outbox_attempts outbox_topics outbox_log);

$page->check_excerpts($page->blocks('js'));
$page->check_links;

done_testing();
