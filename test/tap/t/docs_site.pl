# The documentation site is built, every link on it leads somewhere, it has a
# search index, its pages load nothing from elsewhere, and they fit the screens
# of a phone and of a desktop.  If this fails, the site is missing, cannot be
# read, or sends readers to other servers.
#
# Needs: mkdocs-material chromium nodejs npm docs/site/node_modules test/tap/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

# Pixels: widths of screens, and of a picture whose text can be read.
use constant { LOOK_S => 180, PHONE => 390, DESKTOP => 1280, PICTURE => 640 };

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

# --- in a browser: a page that has to be moved sideways is too wide; tables and
# --- code in it move on their own

sub output_of
{
	my @command = @_;

	IPC::Run::run([ 'node', @command ], '<', \undef, '>', \my $output, '2>', \my $log, IPC::Run::timeout(LOOK_S));
	diag($log) if $log;
	return map { decode_json($_) } split /\n/, $output;
}

my @seen = output_of("$FindBin::RealBin/../programs/widths.js", PHONE, DESKTOP, '--',
	map { "file://$site/$_.html" } qw(index docs/quick-start docs/claims docs/reference/outbox));
is(scalar(@seen), 8, 'the browser shows the pages');
for my $page (@seen)
{
	my $what = "$page->{address}, $page->{width} pixels wide:" =~ s{.*$site/}{}r;

	cmp_ok($page->{wide}, '<=', $page->{width}, "$what it fits");
	is($page->{undrawn}, 0, "$what its pictures are drawn");
	cmp_ok($page->{narrowest} // PICTURE, '>=', PICTURE, "$what and can be read");
}

# --- every picture can be drawn

my @texts = ("$root/README.md", "$root/src/README.md", glob("$root/docs/*.md $root/docs/*/*.md"));
my @pictures = output_of("$FindBin::RealBin/../programs/pictures.js", "$root/docs/site/node_modules/mermaid/dist/mermaid.min.js", @texts);
is(scalar(@pictures), scalar(map { slurp_file($_) =~ /^```mermaid$/mg } @texts), 'the browser draws all pictures');
is($_->{error}, undef, "$_->{file}: $_->{picture}") for @pictures;

done_testing();
