# The pages for operators, docs/operations/, the general pages of docs/reference/
# and SECURITY.md are true: their SQL, pasted into an empty database, prints the
# output shown, operators may run their queries, links lead somewhere, and roles
# have the privileges that are listed.  If this fails, an operator is misled when
# it matters.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

# Pages whose SQL is run here. That of the modules is run in the tests of their
# pages.
my @pages = map { Page->load("$_.md") }
  (map { "operations/$_" } qw(README install monitoring runbook copies retention prometheus)),
  (map { "reference/$_" } qw(README operation settings privileges));
my @of_modules = map { Page->load("operations/$_.md") } qw(claims outbox stock);
my $node = start_server('page', internal_path => 0, conf => 'max_prepared_transactions = 2');

# --- the SQL of each page, in a database of its own, on a server without the
# roles and settings of other pages

# Queries for trouble find something on a server where things happen.
sub may_find
{
	my ($page, $block) = @_;
	return !Page::expected($block) && $page->{name} =~ /runbook/ && $block =~ /\ASELECT/;
}

# Does a block only read what workers do, which need time?
sub only_looks
{
	my ($sql) = @_;
	return $sql !~ /\b(?:ALTER|UPDATE|DELETE|INSERT|ROLE|DO|outbox_\w+\(|idem_\w+\(|idempotency_(?:grant\w*|repair|stats_reset)\(|stock_re\w+\()/;
}

sub roles { return sql(q(SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles)) }

my $roles = roles();
for my $page (@pages)
{
	my $db = $page->{name} =~ tr/a-z/_/cr;
	my $blocks = 0;

	sql(qq(CREATE DATABASE "$db"));
	for my $block ($page->blocks('sql'))
	{
		my ($line) = $block =~ /^ *(.*)/;
		my ($printed, $error) = !may_find($page, $block) && only_looks($block)
		  ? Page::run_until_expected($node, $db, $block)
		  : Page::run($node, $db, $block);

		is($error =~ s/^.*NOTICE:.*\n//mgr, '', "$page->{name} runs: $line");
		ok(may_find($page, $block) || Page::prints_as_expected($block, $printed), "and prints what stands beside it: $line")
		  or diag "it prints: $printed";
		wait_for_workers($node, $db) if !$blocks++ && $block =~ /CREATE EXTENSION/;
	}
	cmp_ok($blocks, '>', 0, "$page->{name} has SQL");
	$page->check_links;

	sql(qq(DROP DATABASE "$db"));
	sql('ALTER SYSTEM RESET ALL');
	sql('SELECT pg_reload_conf()');
	sql("DROP OWNED BY $_; DROP ROLE $_") for grep { " $roles " !~ / $_ / } split / /, roles();
}
$_->check_links for Page->load('../SECURITY.md');

# --- queries for operators, of all pages

sql('CREATE DATABASE shop');
$node->safe_psql('shop', q(CREATE EXTENSION idempotency; SELECT stock_receive('hat', 2); SELECT stock_reserve('hat', 1, 'cart-1')));
wait_for_workers($node, 'shop');
sql('CREATE ROLE watcher LOGIN IN ROLE pg_monitor');
sql('CREATE ROLE operator LOGIN IN ROLE pg_monitor');
$node->safe_psql('shop', q(SELECT idempotency_grant_operator('operator')));

my @queries = map { $_->queries } grep({ $_->{name} =~ /operations/ } @pages), @of_modules;
cmp_ok(scalar(@queries), '>', 25, 'the pages have queries for operators');
for my $query (@queries)
{
	my ($line) = $query =~ /^(.*)/;
	my @roles = ('operator', $query =~ /\bstock_(?:history|verify)\b/ ? () : 'watcher');

	is(error_code($node, 'shop', "SET ROLE $_; $query"), '', "$_: $line") for @roles;
}

# --- who can do it

my ($runbook) = grep { $_->{name} =~ /runbook/ } @pages;
$node->safe_psql('shop', ($runbook->part('Who can do it')->blocks('sql'))[0]);
my $on_duty = sub { return ($node->psql('shop', $_[0], extra_params => [ '-U', 'duty', '-v', 'VERBOSITY=sqlstate' ]))[2] };
is($on_duty->(q(ALTER SYSTEM SET idempotency.outbox_keep_size = '20GB'; ALTER SYSTEM RESET idempotency.outbox_keep_size;
	SELECT pg_reload_conf())), '', 'the role on duty changes a setting of the extension');
like($on_duty->('ALTER SYSTEM SET idempotency.databases = x'), qr/42501/, 'but no other');
$node->safe_psql('shop', q(CREATE ROLE preparer; SELECT idempotency_grant('preparer'); SET ROLE preparer;
	BEGIN; SELECT idem_claim('prepared'); PREPARE TRANSACTION 'forgotten'));
like($on_duty->(q(ROLLBACK PREPARED 'forgotten')), qr/42501/, 'it cannot end a prepared transaction');
$node->safe_psql('shop', 'GRANT preparer TO duty');
is($on_duty->(q(SET ROLE preparer; ROLLBACK PREPARED 'forgotten')), '', 'unless it is a member of the role that prepared it');

# --- the files of queries, each with its question

my ($monitoring) = grep { $_->{name} =~ /monitoring/ } @pages;
my %files = $monitoring->{text} =~ m{^\| (.*\?) \| \[\w+\.sql\]\(\.\./queries/(\w+)\.sql\)}mg;
my $directory = "$FindBin::RealBin/../../../docs/queries";
my %variables = (position => 1, key => 'job-17', sku => 'hat', reservation => 'cart-1');
my $set = join('', map { "\\set $_ $variables{$_}\n" } sort keys %variables);

$node->safe_psql('shop', q(
	SELECT outbox_subscribe('shipping', 'http://127.0.0.1:9/', topics => '{order.*}', retry_schedule => '{0 s,1 h}');
	SELECT outbox_enqueue('order.placed', '{}', deliver_at => now() + '1 day');
	SELECT idem_claim('job-17', lease => '40 s')));
$node->poll_query_until('shop', 'SELECT count(*) = 1 FROM outbox_deliveries') or die 'the relay does not defer the event';
is(join(' ', sort values %files), join(' ', map { m{(\w+)\.sql$} } sort glob("$directory/*.sql")), 'every file of queries is on the page');
for my $question (sort keys %files)
{
	my $file = "$directory/$files{$question}.sql";
	my ($printed, $error) = Page::run($node, 'shop', "SET ROLE operator;\n$set\\i $file");

	like(slurp_file($file), qr/\A-- \Q$question\E/, "$files{$question}.sql: $question");
	is($error, '', 'an operator may ask');
	isnt($printed, '', 'and gets an answer') unless $files{$question} =~ /^(?:late_leases|all_well)$/;
}

# --- privileges: what the table says that each role has, and no more

my ($privileges) = grep { $_->{name} =~ /privileges/ } @pages;
my (%granted, $whose);
for my $row ($privileges->{text} =~ /^\| (?!role)(.*) \|$/mg)
{
	my ($role, $names) = split / *\| */, $row;
	$whose = $1 if $role =~ /`(idempotency_grant\w*|pg_monitor)`/;
	$whose = 'owner' if $role =~ /owner/;
	$granted{$whose}{$_} = 1 for $names =~ /`((?:idem|idempotency|outbox|stock)_\w+)`/g;
}
my $members = q(SELECT DISTINCT name COLLATE "C" AS name FROM (
	SELECT proname AS name, pronamespace AS schema, has_function_privilege('%1$s', oid, 'EXECUTE') AS may FROM pg_proc
	UNION ALL SELECT relname, relnamespace, has_table_privilege('%1$s', oid, 'SELECT') FROM pg_class WHERE relkind = 'v') object
	WHERE may AND schema = 'public'::regnamespace ORDER BY 1);
$granted{idempotency_grant_operator}{$_} = 1 for keys %{ $granted{pg_monitor} },
  grep { !$granted{idempotency_grant}{$_} && !$granted{idempotency_grant_reader}{$_} && !$granted{idempotency_grant_admin}{$_} }
  split /\n/, $node->safe_psql('shop', q(SELECT proname FROM pg_proc WHERE proname LIKE 'outbox\_%' AND pronamespace = 'public'::regnamespace));
for my $grant (qw(idempotency_grant idempotency_grant_reader pg_monitor idempotency_grant_operator))
{
	my $role = $grant eq 'pg_monitor' ? $grant : "by_$grant";
	$node->safe_psql('shop', "CREATE ROLE $role; SELECT $grant('$role')") if $role ne $grant;
	is(join("\n", sort keys %{ $granted{$grant} }), $node->safe_psql('shop', sprintf($members, $role)), "what a role has by $grant");
}

my $security = slurp_file("$FindBin::RealBin/../../../SECURITY.md");
my @tests = $security =~ m{`((?:tap/t|pgtap|isolation/specs)/\w+\.\w+)`}g;
cmp_ok(scalar(@tests), '>', 10, 'SECURITY.md names tests');
is(join(' ', grep { !-f "$FindBin::RealBin/../../$_" } @tests), '', 'which are all there');

done_testing();
