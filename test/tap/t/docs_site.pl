# The documentation site is built, every link on it leads somewhere, it has a
# search index, and its pages load nothing from elsewhere.  If this fails, the
# site is missing, or readers are sent to other servers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my $site = PostgreSQL::Test::Utils::tempdir();
command_ok([ "$root/docs/site/build", $site ], 'the site is built');

my @pages = ("$site/index.html", glob("$site/docs/*.html $site/docs/*/*.html"));
cmp_ok(scalar(@pages), '>', 10, 'it has pages');
for my $page (@pages)
{
	my $text = slurp_file($page);
	my ($name) = $page =~ /([\w-]+\.html)$/;

	unlike($text, qr/<(?:script|img|iframe|link rel="?(?:stylesheet|preconnect)"?)[^>]* (?:src|href)="?(?:https?:)?\/\//,
		"$name loads nothing from elsewhere");
	like($text, qr/<h1[ >]/, "$name has a title");
}
like(slurp_file("$site/docs/claims.html"), qr/<pre class="mermaid">/, 'states are drawn');

my $map = slurp_file("$root/docs/README.md");
my $menu = slurp_file("$root/docs/site/mkdocs.yml");
for my $page (map { m{/docs/(.*\.md)$} } glob("$root/docs/*.md $root/docs/*/*.md"))
{
	like($map, qr/\(\Q$page\E[)#]/, "$page is in the map of the pages") unless $page eq 'README.md';
	like($menu, qr/ docs\/\Q$page\E$/m, 'and in the menu');
}

my $index = decode_json(slurp_file("$site/search/search_index.json"));
ok((grep { $_->{location} eq 'docs/reference/claims.html#idem_claim' } @{ $index->{docs} }), 'the search finds idem_claim');

done_testing();
