# Catalog: everything that a database has of the extension, for comparison.
#
# pg_dump --binary-upgrade prints every member with everything that an upgrade
# of the server must keep: definitions, columns in their order, also dropped
# ones, constraints, indexes, triggers and whether they are enabled, storage,
# comments, privileges, and which of them are the extension's own.  It prints
# neither dependencies nor which tables are dumped, so these are queried.

package Catalog;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use IPC::Run;
use Test::More;

our @EXPORT = qw(catalog same_catalog);

my $query = q(
	SET search_path = pg_catalog;	-- so that names have their schemas
	WITH ext AS (SELECT * FROM pg_extension WHERE extname = 'idempotency'),
	member AS (
		SELECT d.classid, d.objid FROM pg_depend d, ext
		WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = ext.oid AND d.deptype = 'e')
	SELECT format('extension: %s in %s, of %s', extversion, extnamespace::regnamespace, extowner::regrole) FROM ext
	UNION ALL
	SELECT format('dumped: %s %s', c.relation::regclass, extcondition[c.number])
	FROM ext, unnest(extconfig) WITH ORDINALITY AS c(relation, number)
	UNION ALL
	SELECT format('dependency: %s needs %s (%s)', pg_describe_object(d.classid, d.objid, d.objsubid),
		pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype)
	FROM pg_depend d
	WHERE (d.classid, d.objid) IN (TABLE member)
		OR (d.refclassid, d.refobjid) IN (TABLE member) AND d.deptype IN ('a', 'i', 'P', 'S'));

# Returns the definitions of objects, by name.
sub catalog
{
	my ($node, $db) = @_;
	my (%catalog, $dump, $stderr);

	IPC::Run::run([ 'pg_dump', '--binary-upgrade', '--schema-only', '--extension=idempotency',
			$node->connstr($db) ], '>', \$dump, '2>', \$stderr)
	  or die "pg_dump: $stderr";
	for my $entry (split(/^--\n-- (?=Name: )/m, $dump))
	{
		my ($name, $definition) = $entry =~ /^Name: (.*?)\n--\n+(.*?)\n*\z/s or next;
		next if $name =~ /; Type: SEQUENCE SET;/;
		# Numbers of this cluster, and values for columns added to old rows.
		$definition =~ s/^SELECT pg_catalog\.binary_upgrade_set_(?:next|missing)_.*\n|^UPDATE pg_catalog\.pg_class\nSET relfrozenxid.*\n.*\n|^\\unrestrict .*\n?|^--.*\n|^\n//mg;
		$definition =~ s/'\{[\d,]+\}'/N/;
		$catalog{$name} = $definition;
	}
	for my $line (split(/\n/, $node->safe_psql($db, $query)))
	{
		$line =~ s/(?:pg_toast_|Trigger_\w_)\K\d+/N/g;
		$catalog{$line} = '';
	}
	return \%catalog;
}

# The lines that only the first of two definitions has.
sub _lines
{
	my ($sign, $one, $other) = @_;
	my %known = map { $_ => 1 } split(/\n/, $other // '');

	return "$sign (not there)\n" unless defined $one;
	return "$sign there\n" unless defined $other || length $one;
	return join('', map { "$sign $_\n" } grep { !$known{$_} } split(/\n/, $one));
}

# A test that passes if both catalogs have the same objects and definitions.
sub same_catalog
{
	my ($have, $want, $what, $hint) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @wrong;

	for my $name (sort keys %{ { %$have, %$want } })
	{
		my ($one, $other) = ($have->{$name}, $want->{$name});
		next if defined $one && defined $other && $one eq $other;
		my $lines = _lines('    is:       ', $one, $other) . _lines('    should be:', $other, $one);
		push @wrong, "$name\n", $lines || "    lines in another order\n";
	}
	return ok(!@wrong, $what) || diag("$hint\n", @wrong);
}

1;
