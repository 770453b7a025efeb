# What README.md shows is so: pasted into an empty database, its SQL prints what
# stands beside it, the event arrives, and idempotency_status() has no complaint.
# If this fails, the first thing that a new user tries does not work.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Receiver;
use Server;
use Test::More;

my $page = Page->load('../README.md');
my $node = start_server('readme', internal_path => 0);
my $receiver = Receiver->start;

sql('CREATE DATABASE shop');

for my $block ($page->blocks('sql'))
{
	my ($line) = $block =~ /^ *(.*)/;
	my ($printed, $error) = Page::run($node, 'shop', $block =~ s{https://example\.com/}{$receiver->url('/ok/')}er);

	is($error, '', "runs: $line");
	next if $block =~ /idempotency_status/;
	ok(Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
}

$receiver->wait_for('hooks', requests => 1);
my ($request) = $receiver->requests('hooks');
is("$request->{type} $request->{data}{order}", 'order.placed order-1', 'the event arrives');
cmp_ok(sql('SELECT count(*) FROM idempotency_status()', 'shop'), '>', 5, 'the status has rows');
is(sql("SELECT detail FROM idempotency_status() WHERE state <> 'ok'", 'shop'), '', 'and all of them are ok');

$page->check_links;

done_testing();
