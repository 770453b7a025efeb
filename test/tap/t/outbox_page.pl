# The pages about the outbox are true: each of them, pasted into an empty
# database, prints the output shown, with the receiver that it names, and
# excerpts are those of the recipes.  If this fails, a page shows what does not
# work.
#
# Needs: docs/recipes/node_modules

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

my @pages = map { Page->load($_) } qw(outbox.md how-to/outbox.md how-to/subscriptions.md reference/outbox.md
  reference/delivery.md recipes/outbox.md operations/outbox.md);
my $node = start_server('page', internal_path => 0);
my $elsewhere = Receiver->start;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $receiver;

sql('CREATE DATABASE shipping');
install_extension($node, 'pg_jsonschema');

sub database
{
	my ($page) = @_;
	return $page->{name} =~ s/\W/_/gr;
}

# The receiver of a page is started as soon as it has a secret.
sub start_receiver
{
	my ($db, $secret) = @_;
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

sub run_block
{
	my ($db, $block) = @_;
	my ($line) = $block =~ /^ *(.*)/;
	my $sql = $block =~ s/127\.0\.0\.1:8080/127.0.0.1:$port/r;

	$sql =~ s{https://example\.com/}{$elsewhere->url('/ok/')}ge;
	my ($printed, $error) = only_looks($sql)
	  ? Page::run_until_expected($node, $db, $sql)
	  : Page::run($node, $db, $sql);
	is($error, '', "$db runs: $line");
	ok(Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
	start_receiver($db, $printed) if $block =~ /\Q127.0.0.1:8080\E/ && !$receiver;
	return;
}

for my $page (@pages)
{
	my $db = database($page);

	sql("CREATE DATABASE $db");
	sql('CREATE EXTENSION plpython3u', $db); # for the stand-in of pg_jsonschema
	run_block($db, $_) for $page->blocks('sql');
	$page->check_excerpts($page->blocks('js'));
	$page->check_links;
}

is($node->safe_psql('shipping', 'SELECT order_id, item, quantity FROM parcels WHERE order_id = 1'), '1|hat|2',
	'the receiver of the page has done its work');
like($receiver->line(webhook_id($node, 2, 'outbox_md')), qr/order.placed claimed$/, 'and said so');

# Readers paste the first pages of all modules into one database.
Page->load($_)->check_sql_in($node, 'outbox_md') for qw(claims.md stock.md);

done_testing();
