# Page: a page of docs, used as a reader would use it: its SQL is run, its
# excerpts are searched in the recipes, its links are followed.

package Page;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use constant { LOOK_S => 30, PAUSE_S => 0.1 };

my $docs = abs_path(dirname(__FILE__) . '/../../../docs');

sub load
{
	my ($class, $name) = @_;
	return bless { name => $name, text => slurp_file("$docs/$name") }, $class;
}

# All blocks in a language, in their order.
sub blocks
{
	my ($self, $language) = @_;
	return $self->{text} =~ /^```$language\n(.*?)^```$/gms;
}

# The page from a heading on.
sub part
{
	my ($self, $heading) = @_;
	my ($text) = $self->{text} =~ /^(#+ \Q$heading\E\n.*)/ms
	  or die "no $heading in $self->{name}";
	return bless { %$self, text => $text };
}

# Its queries, one by one: statements that only read, and call no function of
# the extension but the two that only read.
sub queries
{
	my ($self) = @_;
	my $acts = qr/\b(?:idem|outbox|stock)_(?!verify\()\w+\(|\bidempotency_(?!status\()\w+\(/;
	return grep { /^SELECT/ && !/$acts/ }
	  map { s/^\s*--.*\n//mgr =~ s/\A\s+//r }
	  map { split /;[^\n]*\n/ } $self->blocks('sql');
}

# The output of SQL as the page shows it: in the comment after a statement, or
# far to the right in the lines below it.  There "..." stands for any text.
sub expected
{
	my ($sql) = @_;
	return $sql =~ /(?:;|^ {40,}) *-- (.+)$/gm;
}

# Runs SQL as one session; returns its output and its errors.
sub run
{
	my ($node, $db, $sql) = @_;
	my ($stdout, $stderr);
	my $status = $node->psql($db, $sql, stdout => \$stdout, stderr => \$stderr,
		extra_params => [ '--field-separator', ' | ' ], on_error_stop => 1);
	return (join("\n", grep { $_ ne '' } split /\n/, $stdout), $status == 0 ? '' : $stderr);
}

sub prints_as_expected
{
	my ($sql, $printed) = @_;
	my $expected = join("\n", map { join('.*', map { quotemeta } split /\Q...\E/, $_, -1) } expected($sql));
	return $printed =~ /\A$expected\z/;
}

# Repeats SQL that only reads until it prints the expected output, since workers
# need time.
sub run_until_expected
{
	my ($node, $db, $sql) = @_;
	my $until = time + LOOK_S;
	my ($printed, $error) = run($node, $db, $sql);

	while (!$error && !prints_as_expected($sql, $printed) && time < $until)
	{
		sleep PAUSE_S;
		($printed, $error) = run($node, $db, $sql);
	}
	return ($printed, $error);
}

# Does a block only read what workers do, which needs time?
sub _only_looks
{
	my ($sql) = @_;
	my $acts = qr/\b(?:idem|outbox|stock)_(?!(?:level|verify|reservation_status)\()\w+\(|\bpg_reload_conf\(/;
	return !grep { !/\A\s*SELECT\b/ || /$acts/ } grep { /\S/ } split /;[^\n]*\n/, $sql =~ s/^\s*--.*\n//mgr;
}

# Lines with a command of psql that takes the next lines for its arguments, if
# they are pasted together and no \\ ends it.
sub _takes_what_follows
{
	my ($block) = @_;
	return join('', $block =~ /^((?:\\|.*\\gset\b).*(?<!\\\\)\n)(?=.)/mg);
}

# Tests that the SQL of a page runs in an empty database, block by block, and
# prints what stands beside it.
sub check_sql
{
	my ($self, $node, $db) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	return $self->check_sql_in($node, $db);
}

# The same in a database where other pages have been.
sub check_sql_in
{
	my ($self, $node, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 2;

	for my $block ($self->blocks('sql'))
	{
		my ($line) = $block =~ /^ *(.*)/;
		my $loaded = $node->safe_psql($db, 'SELECT pg_conf_load_time()');
		my ($printed, $error) = _only_looks($block) ? run_until_expected($node, $db, $block) : run($node, $db, $block);

		is($error || _takes_what_follows($block), '', "$self->{name} runs: $line");
		ok(prints_as_expected($block, $printed), 'and prints what stands beside it')
		  or diag "it prints: $printed";

		# New sessions have the changed settings.
		$node->poll_query_until($db, "SELECT pg_conf_load_time() > '$loaded'") if $block =~ /pg_reload_conf/;
	}
	return;
}

# Is this block an excerpt from a recipe?
sub is_of_recipe
{
	my ($self, $block) = @_;
	return scalar grep { index(slurp_file($_), $block) >= 0 } glob("$docs/recipes/*.{js,sql,lua}");
}

# Tests that the blocks, except those that are not from a recipe, are excerpts
# of the recipes.
sub check_excerpts
{
	my ($self, @blocks) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	for my $block (@blocks)
	{
		my ($line) = $block =~ /^ *(.*)/;
		ok($self->is_of_recipe($block), "of a recipe: $line");
	}
	return;
}

# Tests that the server has the function signatures that the page documents.
sub check_signatures
{
	my ($self, $node, $db, $module) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $signatures = q(SELECT string_agg(format('%s(%s) -> %s', proname, pg_get_function_arguments(p.oid),
		pg_get_function_result(p.oid)), E'\n' ORDER BY proname, pg_get_function_arguments(p.oid)) FROM pg_proc p);

	$node->safe_psql($db, 'DROP SCHEMA IF EXISTS page CASCADE; CREATE SCHEMA page');
	while ($self->{text} =~ /^```\n(CALL )?(${module}_\w+)\(([^`]*?)\)(?:\s+-> ([^`]+))?\n```$/mg)
	{
		my ($kind, $name, $parameters, $result) = ($1 ? 'PROCEDURE' : 'FUNCTION', $2, $3, $4);
		my $returns = defined $result ? "RETURNS $result" : '';

		# Columns of rows are parameters, too.
		if ($returns =~ /^RETURNS setof \((.*)\)$/s)
		{
			$parameters .= join('', map { /^\s*(\w+) (.*)/ ? ", OUT \"$1\" $2" : '' } split(/,/, $1));
			$returns = 'RETURNS SETOF record';
		}
		$node->safe_psql($db, "CREATE $kind page.$name($parameters) $returns LANGUAGE plpgsql AS 'BEGIN END'");
	}
	return is($node->safe_psql($db, "$signatures WHERE pronamespace = 'page'::regnamespace"),
		$node->safe_psql($db, "$signatures JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid"
			  . " AND d.deptype = 'e' WHERE proname LIKE '$module\\_%' AND obj_description(p.oid) NOT LIKE 'Internal:%'"),
		"docs/$self->{name} has the signatures of all public functions ${module}_*, and no others");
}

# The columns of a view with their types, as "name type", sorted by name.
sub _documented_columns
{
	my ($self, $view) = @_;
	my ($table) = $self->{text} =~ /^\*\*`$view`\*\* \(view\b[^)]*\)(.*?)\n\n[^|]/ms;
	my @columns;

	for my $row ($table =~ /^(\| `.*)$/gm)
	{
		my (undef, $names, $types) = split / *\| */, $row;
		my @types = split /, /, $types;
		push @columns, map { s/`//gr . ' ' . (@types > 1 ? shift @types : $types[0]) } split /, /, $names;
	}
	return join(', ', sort @columns);
}

sub _view_columns
{
	my ($node, $db, $view) = @_;
	my $columns = $node->safe_psql($db, "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
		  . " WHERE attrelid = '$view'::regclass AND attnum > 0");
	return join(', ', sort map { s/\|/ /r =~ s/timestamp with time zone/timestamptz/r } split /\n/, $columns);
}

sub check_columns
{
	my ($self, $node, $db, $view) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($self->_documented_columns($view), _view_columns($node, $db, $view),
		"the columns of view $view are in a table in docs/$self->{name}");
}

# The anchors of a page, derived from its headings.
sub _anchors
{
	my ($text) = @_;
	return map { lc(tr/ /-/r) =~ tr/a-z0-9_-//cdr => 1 } $text =~ /^#+ (.*)$/gm;
}

sub check_links
{
	my ($self) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @broken;

	for my $link ($self->{text} =~ /\]\((?!http)([^)]+)\)/g)
	{
		my ($file, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
		my $path = $file ? dirname("$docs/$self->{name}") . "/$file" : "$docs/$self->{name}";
		my %anchors = -f $path ? _anchors(slurp_file($path)) : ();
		push @broken, $link unless -e $path && (!$anchor || $anchors{$anchor});
	}
	return is("@broken", '', "all links of $self->{name} lead somewhere");
}

1;
