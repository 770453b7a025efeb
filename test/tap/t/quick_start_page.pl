# docs/quick-start.md is true: its commands, typed one after the other into an
# empty database, print what stands beside them, and its receiver prints the
# events shown.  If this fails, the first ten minutes of a new user go wrong.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use PostgreSQL::Test::Cluster;
use Program;
use Server;
use Test::More;

my $page = Page->load('quick-start.md');
my ($before, $after) = split /^## 5\..*\n/m, $page->{text};
my $node = start_server('quick_start', internal_path => 0);
my $port = PostgreSQL::Test::Cluster::get_free_port();

sql('CREATE DATABASE shop');

sub start_receiver { return start_recipe('print_events.js', PORT => $port)->wait_for_start('listening'); }

# Runs the SQL of a part of the page as one session.
sub run_part
{
	my ($text) = @_;
	my $script = join("\n", Page::blocks({ text => $text }, 'sql')) =~ s/127\.0\.0\.1:8080/127.0.0.1:$port/r;
	my ($printed, $error) = Page::run_until_expected($node, 'shop', $script);
	my ($line) = $script =~ /^(SELECT.*)/m;

	is($error, '', "runs: $line");
	ok(Page::prints_as_expected($script, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
	return;
}

# The receiver prints the events of a part, and nothing else.
sub check_receiver
{
	my ($receiver, $text) = @_;
	for my $event ($text =~ /^(received .*)$/gm)
	{
		my ($begin, $end) = split /\Q...\E/, $event;
		like($receiver->line('received'), qr/\A\Q$begin\E[^"]+\Q$end\E\z/, "prints $event");
	}
	is(join("\n", $receiver->lines), '', 'and nothing else');
	return;
}

my $receiver = start_receiver();
run_part($before);
check_receiver($receiver, $before);
$node->poll_query_until('shop', 'SELECT delivered = 2 FROM outbox_subscriptions') or die 'its answers do not arrive';
$receiver->stop;

# Without a receiver an order is placed, and its event waits.
my ($placed, $waits, $retries, @rest) = Page::blocks({ text => $after }, 'sql');
run_part("```sql\n$_```\n") for $placed, $waits;
$receiver = start_receiver();
run_part("```sql\n$retries```\n");
check_receiver($receiver, $after);
run_part("```sql\n$_```\n") for @rest;

Page->load($_)->check_links for qw(quick-start.md coming-from.md glossary.md README.md);

done_testing();
