# docs/operations.md and SECURITY.md are true: their SQL prints the output
# shown, operators may run their queries, links lead somewhere, and the table of
# settings matches the server.  If this fails, an operator is misled when it
# matters.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $page = Page->load('operations.md');
my $node = start_server('page', internal_path => 0);

sql('CREATE DATABASE shop');
sql('CREATE ROLE shop_app LOGIN');

# What the page assumes: a subscription, and events that were not delivered.
sub prepare
{
	wait_for_workers($node, 'shop');
	return $node->safe_psql('shop', q(
		SELECT outbox_subscribe('shipping', 'http://127.0.0.1:9/', topics => '{order.*}', retry_schedule => '{0 s,1 h}');
		SELECT outbox_pause('shipping');
		SELECT outbox_enqueue('order.placed', '{}') FROM generate_series(1, 2)));
}

# Queries of the second half search for problems, and may find some.
sub may_find
{
	my ($block) = @_;
	return !Page::expected($block) && $block =~ /\ASELECT/
	  && index($page->{text}, $block) > index($page->{text}, "\n## What to do when\n");
}

# Does a block only read what workers do, which need time?
sub only_looks
{
	my ($sql) = @_;
	return !may_find($sql) && $sql !~ /\b(?:ALTER|CREATE|UPDATE|DELETE|INSERT|outbox_\w+\(|idem_\w+\(|idempotency_(?:grant\w*|repair)\(|stock_re\w+\()/;
}

my $blocks = 0;
for my $block ($page->blocks('sql'))
{
	my ($line) = $block =~ /^ *(.*)/;
	prepare() if $block =~ /max_in_flight/;
	my ($printed, $error) = only_looks($block)
	  ? Page::run_until_expected($node, 'shop', $block)
	  : Page::run($node, 'shop', $block);

	is($error =~ s/^.*NOTICE:.*\n//mgr, '', "runs: $line");
	ok(may_find($block) || Page::prints_as_expected($block, $printed), 'and prints what stands beside it')
	  or diag "it prints: $printed";
	$blocks++;
}
cmp_ok($blocks, '>', 15, 'the page has queries');

# --- queries for operators, of all pages

sql('CREATE ROLE watcher LOGIN IN ROLE pg_monitor');
sql('CREATE ROLE operator LOGIN IN ROLE pg_monitor');
$node->safe_psql('shop', q(SELECT idempotency_grant_operator('operator')));
my @queries = map { $_->queries } $page, map { Page->load($_)->part('For operators') } qw(claims.md outbox.md stock.md);
cmp_ok(scalar(@queries), '>', 15, 'the pages have queries for operators');
for my $query (@queries)
{
	my ($line) = $query =~ /^(.*)/;
	my @roles = ('operator', $query =~ /\bstock_(?:history|verify)\b/ ? () : 'watcher');

	is(error_code($node, 'shop', "SET ROLE $_; $query"), '', "$_: $line") for @roles;
}

# --- the files of queries, each with its question

my %files = $page->{text} =~ m{^\| (.*\?) \| \[\w+\.sql\]\(queries/(\w+)\.sql\)}mg;
my $directory = "$FindBin::RealBin/../../../docs/queries";
my %variables = (position => 1, key => 'job-17', sku => 'hat', reservation => 'cart-1');
my $set = join('', map { "\\set $_ $variables{$_}\n" } sort keys %variables);

is(join(' ', sort values %files), join(' ', map { m{(\w+)\.sql$} } sort glob("$directory/*.sql")), 'every file of queries is on the page');
sql(q(SELECT stock_receive('hat', 2); SELECT stock_reserve('hat', 1, 'cart-1')), 'shop');
for my $question (sort keys %files)
{
	my $file = "$directory/$files{$question}.sql";
	my ($printed, $error) = Page::run($node, 'shop', "SET ROLE operator;\n$set\\i $file");

	like(slurp_file($file), qr/\A-- \Q$question\E/, "$files{$question}.sql: $question");
	is($error, '', 'an operator may ask');
	isnt($printed, '', 'and gets an answer') unless $files{$question} =~ /^(?:late_leases|all_well)$/;
}

# --- settings, as reference.md has them

my %who = (
	user => 'anyone|in the next call',
	sighup => 'configuration file|on reload',
	postmaster => 'configuration file|at the start of the server',
	superuser => 'superuser|at once in the session');
my $reference = slurp_file("$FindBin::RealBin/../../../docs/reference.md");
my %documented = $reference =~ /^\| `(idempotency\.\w+)` \| (.*) \|$/mg;
my @settings = map { [ split(/\|/, $_, -1) ] } split(/\n/, $node->safe_psql('shop', q(
	SELECT name, context, vartype, unit, min_val, max_val, current_setting(name) FROM pg_settings
	WHERE name LIKE 'idempotency.%' AND name <> 'idempotency.webhook_allowed_networks'
	UNION ALL SELECT name, context, 'list', unit, '', '', boot_val FROM pg_settings
	WHERE name = 'idempotency.webhook_allowed_networks' ORDER BY 1)));

is(join(' ', sort keys %documented), join(' ', map { $_->[0] } @settings), 'every setting is in the reference, and no other');
for my $setting (@settings)
{
	my ($name, $context, $type, $unit, $min, $max, $default) = @$setting;
	my ($documented_type, $documented_default, $range, $who, $effect) = split / *\| */, $documented{$name}, -1;

	like("$who|$effect", qr/^\Q$who{$context}\E/, "$name: who may set it, and when it takes effect");
	like($documented_type, $type eq 'integer' ? qr/^integer(?:, (?:\Q$unit\E|rows))?$/ : qr/^(?:text|list|boolean)/,
		"$name: its type");
	is($unit eq '' || $documented_type =~ /, \Q$unit\E$/, 1, "$name: its unit");
	is($documented_default =~ s/ (s|min|MB|d)(?:ays?)?\b/$1/r =~ s/^(?:empty|-1):.*/$default eq '' ? '' : '-1'/er,
		$default, "$name: its default");
	my ($from, $to) = $range =~ /^(-?\d+)(?: \([^)]*\))? to (\d+)/;
	is(defined $from ? "$from $to" : '', $type eq 'integer' ? "$min $max" : '', "$name: its range");
}

my $security = slurp_file("$FindBin::RealBin/../../../SECURITY.md");
my @tests = $security =~ m{`((?:tap/t|pgtap|isolation/specs)/\w+\.\w+)`}g;
cmp_ok(scalar(@tests), '>', 10, 'SECURITY.md names tests');
is(join(' ', grep { !-f "$FindBin::RealBin/../../$_" } @tests), '', 'which are all there');

Page->load($_)->check_links for qw(operations.md ../SECURITY.md);
Page->load('reference.md')->check_columns($node, 'shop', $_)
  for qw(idempotency_segments idempotency_workers outbox_stats outbox_latency stock_stats);

done_testing();
