# docs/reference has each public function with its signature, each view with its
# columns, each setting, each value of an enum and each SQLSTATE that the
# extension raises, and no others.  A test that fails names the file to write it
# in.  If this fails, users cannot find out what something does, or read what is
# not so.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my $node = start_server('reference', internal_path => 0);
my %page = map { $_ => Page->load("reference/$_.md") } qw(README claims delivery operation outbox privileges settings stock);

# Where objects are described, by how their names begin.
my %functions = (idem => ['claims'], idempotency => [ 'operation', 'privileges' ], outbox => ['outbox'], stock => ['stock']);
my %views = (idem => 'claims', idempotency => 'operation', outbox => 'delivery', stock => 'stock',
	map { $_ => 'operation' } qw(outbox_latency outbox_stats stock_stats));

sub members
{
	my ($catalog, $name, $schema, $condition) = @_;
	return split /\n/, sql("SELECT DISTINCT $name COLLATE \"C\" FROM $catalog c JOIN pg_depend d ON d.classid = '$catalog'::regclass"
		  . " AND d.objid = c.oid AND d.deptype = 'e' WHERE $schema = 'public'::regnamespace AND $condition ORDER BY 1");
}

# --- functions, with their signatures

for my $module (sort keys %functions)
{
	my @pages = map { $page{$_} } @{ $functions{$module} };
	my $all = bless { name => join(' and docs/', map { $_->{name} } @pages), text => join("\n", map { $_->{text} } @pages) }, 'Page';
	$all->check_signatures($node, 'postgres', $module);
}

# --- views, with their columns

for my $view (members('pg_class', 'relname', 'relnamespace', q(relkind = 'v')))
{
	my ($module) = $view =~ /^([a-z]+)/;
	$page{ $views{$view} // $views{$module} }->check_columns($node, 'postgres', $view);
}

# --- settings

my %who = (
	user => 'anyone',
	sighup => 'file',
	postmaster => 'restart',
	superuser => 'superuser');
my %documented = $page{settings}{text} =~ /^\| `(idempotency\.\w+)` \| (.*) \|$/mg;
my %explained = map { $_ => 1 } $page{settings}{text} =~ /\*\*(\w+)\*\*/g;
my @settings = map { [ split(/\|/, $_, -1) ] } split(/\n/, sql(q(
	SELECT name, context, vartype, unit, min_val, max_val, current_setting(name) FROM pg_settings
	WHERE name LIKE 'idempotency.%' AND name <> 'idempotency.webhook_allowed_networks'
	UNION ALL SELECT name, context, 'list', unit, '', '', boot_val FROM pg_settings
	WHERE name = 'idempotency.webhook_allowed_networks' ORDER BY 1)));

is(join("\n", sort keys %documented), join("\n", map { $_->[0] } @settings),
	'the table in docs/reference/settings.md has every setting, and no other');
is(join("\n", sort map { "idempotency.$_" } keys %explained), join("\n", map { $_->[0] } @settings),
	'and docs/reference/settings.md explains each');
for my $setting (grep { $documented{ $_->[0] } } @settings)
{
	my ($name, $context, $type, $unit, $min, $max, $default) = @$setting;
	my ($documented_type, $documented_default, $range, $who) = split / *\| */, $documented{$name}, -1;

	is($who, $who{$context}, "$name: who may set it");
	like($documented_type, $type eq 'integer' ? qr/^integer(?:, (?:\Q$unit\E|rows))?$/ : qr/^(?:text|list|boolean)/,
		"$name: its type");
	is($unit eq '' || $documented_type =~ /, \Q$unit\E$/, 1, "$name: its unit");
	is($documented_default =~ s/ (s|min|MB|d)(?:ays?)?\b/$1/r =~ s/^(?:empty|-1):.*/$default eq '' ? '' : '-1'/er,
		$default, "$name: its default");
	my ($from, $to) = $range =~ /^(-?\d+)(?: \([^)]*\))? to (\d+)/;
	is(defined $from ? "$from $to" : '', $type eq 'integer' ? "$min $max" : '', "$name: its range");
}

# --- the index, and the types

my $index = $page{README}{text};
my %listed = map { $_ => 1 } map { s/^\.\.\./idempotency_grant/r } map { /^\|(?! type| `)[^|]*\|/ ? /\[((?:\.\.\.|idem|outbox|stock)\w+)\]/g : () } split /\n/, $index;
$listed{$_} = 1 for $index =~ /^\| `((?:idem|stock)_\w+)` \| (?:enum|row)/mg;
my %public = map { $_ => 1 } members('pg_proc', 'proname', 'pronamespace', 'true'),
  members('pg_class', 'relname', 'relnamespace', q(relkind = 'v')),
  members('pg_type', 'typname', 'typnamespace', q((typtype = 'e' OR typtype = 'c' AND (SELECT relkind = 'c' FROM pg_class r WHERE r.oid = typrelid))));
is(join("\n", sort keys %listed), join("\n", sort keys %public),
	'the index in docs/reference/README.md has all public functions, views and types, and no others');

my %values = $index =~ /^\| `(\w+)` \| enum \| (.*) \|$/mg;
is(join("\n", map { "$_|$values{$_}" =~ s/[` ]//gr } sort keys %values), sql(q(
	SELECT t.typname, string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
	FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid WHERE t.typnamespace = 'public'::regnamespace
	GROUP BY 1 ORDER BY 1)), 'docs/reference/README.md has all values of enums');

# --- SQLSTATEs: what the sources of a module raise is on its pages, or on the
# page about all

my @everywhere = grep { $_ ne 'README' } sort keys %page;
my %pages_of = (base => \@everywhere, launch => \@everywhere, claim => ['claims'], stock => ['stock'],
	outbox => [ 'outbox', 'delivery' ], relay => [ 'outbox', 'delivery' ]);

# Not documented: what cannot happen, and what internal functions raise if they
# are called in another way than by the extension.
my %internal = (XX000 => 1, '39P01' => 1);

my %state = slurp_file((run_command([ 'pg_config', '--sharedir' ]))[0] . '/errcodes.txt') =~ /^(\w{5})\s+[EWS]\s+(ERRCODE_\w+)/mg;
%state = reverse %state;
for my $own (slurp_file("$root/src/base/errors.h") =~ /^#define (ERRCODE_\w+\s+MAKE_SQLSTATE\(.*\))$/mg)
{
	$state{ ($own =~ /^(\w+)/)[0] } = join('', $own =~ /'(.)'/g);
}

for my $file (map { glob("$root/src/$_/*.c $root/src/$_/*.sql") } sort keys %pages_of)
{
	my ($name, $module) = $file =~ m{^\Q$root\E/(src/(\w+)/.*)};
	my $source = slurp_file($file);
	my %raised = map { ($state{$_} // "no SQLSTATE: $_") => 1 } $source =~ /\berrcode\((ERRCODE_\w+)\)/g;

	$raised{$_} = 1 for $source =~ /(?:idempotency_raise\(|\bERRCODE = )'(\w{5})'/g;
	next unless %raised;
	my @pages = @{ $pages_of{$module} };
	my $text = join('', map { $_->{text} } @page{ @pages, 'README' });
	my @missing = grep { !$internal{$_} && $text !~ /\b$_\b/ } sort keys %raised;
	is("@missing", '', "SQLSTATEs of $name are in docs/reference/"
		  . (@pages > 2 ? 'README.md' : join(' or ', map { "$_.md" } @pages, 'README')));
}

done_testing();
