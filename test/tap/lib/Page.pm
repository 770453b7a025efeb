# Page: a page of docs, as a reader would use it: its SQL is typed, its excerpts
# are looked up in the recipes, its links are followed.

package Page;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;

my $docs = abs_path(dirname(__FILE__) . '/../../../docs');

sub load
{
	my ($class, $name) = @_;
	return bless { name => $name, text => slurp_file("$docs/$name") }, $class;
}

# All blocks of a language, in their order.
sub blocks
{
	my ($self, $language) = @_;
	return $self->{text} =~ /^```$language\n(.*?)^```$/gms;
}

# What SQL prints, by the page: in the comment behind a statement, or far to the
# right in the lines below it.  There "..." stands for anything.
sub expected
{
	my ($sql) = @_;
	return $sql =~ /(?:;|^ {40,}) *-- (.+)$/gm;
}

# Runs SQL as one session, and returns what it prints, and its errors.
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

# Are these blocks, all but those that are not of a recipe by intent, excerpts of
# the recipes?
sub check_excerpts
{
	my ($self, @blocks) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @recipes = map { slurp_file($_) } glob("$docs/recipes/*.js $docs/recipes/*.sql");

	for my $block (@blocks)
	{
		my ($line) = $block =~ /^ *(.*)/;
		ok(scalar(grep { index($_, $block) >= 0 } @recipes), "of a recipe: $line");
	}
	return;
}

# The anchors of a page, as they are made of its headings.
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
		my $path = "$docs/" . ($file || $self->{name});
		my %anchors = -f $path ? _anchors(slurp_file($path)) : ();
		push @broken, $link unless -e $path && (!$anchor || $anchors{$anchor});
	}
	return is("@broken", '', "all links of $self->{name} lead somewhere");
}

1;
