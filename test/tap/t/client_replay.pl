# The npm library and the Python library save answers in the same form, and have
# the same fingerprint of requests: each replays what the other has saved.  If this
# fails, a request that is sent again to another part of a service gets 422, or
# another answer.
#
# Needs: python3-psycopg python3-psycopg-pool python3-asyncpg python3-django python3-starlette
# Needs: python3-uvicorn clients/javascript/node_modules

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/../lib";
use HTTP::Tiny;
use Program;
use Server;
use Test::More;

my $clients = abs_path("$FindBin::RealBin/../../../clients");
my $python = "$clients/python/tests/programs";

my $node = start_server('shop', internal_path => 0);
sql(<<'END');
CREATE ROLE shop LOGIN;
SELECT idempotency_grant('shop');
CREATE TABLE effects (key text NOT NULL);
GRANT INSERT ON effects TO shop;
END

my %env = (as_shop($node), PYTHONPATH => "$clients/python/src");
my %ports;
my $servers = Program->start([ 'node', "$clients/javascript/test/programs/servers.js" ], %env);
$ports{$_} = ($servers->line($_) =~ /(\d+)$/)[0] for qw(express fastify hono);

for my $program ([ 'asgi_app.py', 'asyncpg', 40 ], ['django_app.py'])
{
	my ($file, @arguments) = @$program;
	($ports{$file}) = Program->start([ qw(/usr/bin/python3 -B -u), "$python/$file", @arguments ], %env)->line('listening') =~ /(\d+)$/;
}

# Sends a request, and returns the answer without what a server adds.
sub order
{
	my ($framework, $target, $key, $body) = @_;
	my $answer = HTTP::Tiny->new(timeout => 60)->post("http://127.0.0.1:$ports{$framework}$target", {
		headers => { 'X-Account' => 'ann', 'Content-Type' => 'application/json', 'Idempotency-Key' => qq("$key") },
		content => $body });
	my $headers = $answer->{headers};
	my @kept = map { my $value = $headers->{$_}; "$_: " . join ', ', ref $value ? @$value : $value // 'none' } qw(content-type link x-order);
	return (join("\n", $answer->{status}, @kept, $answer->{content}), $headers->{'idempotent-replayed'} // 'no');
}

my @frameworks = sort keys %ports;
my %requests = (
	work => '/orders/new',
	links => q(/orders/new?a=%20b&c='d'),
	binary => '/orders/new',
	conflict => '/orders/new?',
);
for my $do (sort keys %requests)
{
	for my $first (@frameworks)
	{
		my $key = "$first, $do";
		my $body = qq({ "effect" : "$key",  "do": "$do", "number": 1.50 });
		my ($saved) = order($first, $requests{$do}, $key, $body);
		for my $second (@frameworks)
		{
			my ($answer, $replayed) = order($second, $requests{$do}, $key, $body);
			is($answer, $saved, "$key: the same from $second");
			is($replayed, 'true', 'replayed');
		}
		is((order($frameworks[0], $requests{$do}, $key, "$body "))[0] =~ /^(\d+)/ && $1, 422, "$key: another body");
		is(sql("SELECT count(*) FROM effects WHERE key = '$key'"), $do eq 'conflict' ? 0 : 1, "$key: one effect");
	}
}

like((order('express', $requests{links}, 'express, links', '{ "effect" : "express, links",  "do": "links", "number": 1.50 }'))[0],
	qr/^201\n.*^link: <\/1>; rel=next, <\/2>; rel=last$/ms, 'repeated headers are kept, in their order');

done_testing();
