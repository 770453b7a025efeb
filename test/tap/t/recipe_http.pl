# The HTTP server of docs/recipes answers as the IETF draft of Idempotency-Key
# requires, in both modes.  If this fails, the first program that newcomers copy
# accepts an order twice, or gives a wrong answer.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP;
use Program;
use Receiver;
use Server;
use Socket qw(SO_RCVTIMEO);
use Test::More;

my $node = start_server('shop', internal_path => 0);
my $receiver = Receiver->start;
my $provider = $receiver->url('/switch/provider');

prepare_recipe($node, 'http.sql');
my $server = start_recipe('http.js', as_shop($node), PORT => 0, PROVIDER_URL => $provider);
my ($port) = $server->line('listening') =~ /(\d+)$/ or die 'the server does not start';

# Sends a POST request, and returns the answer with its decoded body.
sub post
{
	my ($path, $key, $body, %headers) = @_;
	$headers{'Idempotency-Key'} = $key if defined $key;
	my $answer = HTTP::Tiny->new(timeout => 60)->post("http://127.0.0.1:$port$path",
		{ headers => { 'X-Account' => 'ann', %headers }, content => encode_json($body) });

	$answer->{body} = eval { decode_json($answer->{content}) };
	return $answer;
}

# Sends a request without waiting for the answer.
sub post_later
{
	my ($path, $key, $body) = @_;
	my $socket = IO::Socket::INET->new("127.0.0.1:$port") or die "could not connect: $!";
	my $content = encode_json($body);

	$socket->sockopt(SO_RCVTIMEO, pack('l!l!', 60, 0));
	print $socket "POST $path HTTP/1.1\r\nHost: shop\r\nX-Account: ann\r\nIdempotency-Key: $key\r\n"
	  . 'Content-Length: ' . length($content) . "\r\n\r\n$content";
	return $socket;
}

sub status_of
{
	my ($socket) = @_;
	my ($status) = (<$socket> // 'no answer') =~ m{^HTTP/1.1 (\d+)};
	return $status;
}

sub is_problem
{
	my ($answer, $status, $title, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is("$answer->{status} $answer->{headers}{'content-type'}", "$status application/problem+json",
		"$what: $status, a problem of RFC 9457");
	is($answer->{body}{title}, $title, "$what: in the words of the draft");
	return;
}

# --- the header

my %hat = (item => 'hat', quantity => 2, amount => 5);    # would do as a payment too

is_problem(post('/orders', undef, \%hat), 400, 'Idempotency-Key is missing', 'no key');
is_problem(post('/orders', $_, \%hat), 400, 'Idempotency-Key is malformed', "the key $_")
  for 'abc', '""', '"abc', '"a"b"', '"' . 'x' x 256 . '"';
is_problem(post('/orders', [ '"a"', '"b"' ], \%hat), 400, 'Idempotency-Key is malformed', 'two keys');
is(sql('SELECT count(*) FROM orders'), '0', 'and nothing was done');

# --- an order: claim, work and answer in one transaction

my $first = post('/orders', '"order-1"', \%hat);
is($first->{status}, 201, 'an order is taken');
my $again = post('/orders', '"order-1"', \%hat);
is("$again->{status} $again->{content}", "201 $first->{content}", 'sent again, it gets the same answer');
is($again->{headers}{'idempotent-replayed'}, 'true', 'marked as a replay');
is($first->{headers}{'idempotent-replayed'}, undef, 'which the first one is not');
is(sql('SELECT count(*) FROM orders'), '1', 'and is one order');
is_problem(post('/orders', '"order-1"', { %hat, quantity => 3 }), 422,
	'Idempotency-Key is already used', 'the same key for another order');
is_problem(post('/payments', '"order-1"', \%hat), 422,
	'Idempotency-Key is already used', 'the same key for another path');
my $other = post('/orders', '"order-1"', \%hat, 'X-Account' => 'bob');
is($other->{status}, 201, 'the same key of another account is another key');
isnt($other->{content}, $first->{content}, 'with an answer of its own');
is(post('/orders', '"say \"hi\" \\\\ "', \%hat)->{status}, 201, 'quotes and backslashes are part of a key');
is(sql(q(SELECT count(*) FROM idem_key WHERE key = 'say "hi" \ ')), '1', 'unescaped');

# While another transaction has the key, a request does not wait.
my $session = session($node);
$session->query_safe('BEGIN; LOCK TABLE orders');
my $slow = post_later('/orders', '"order-2"', \%hat);
wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'orders'::regclass AND NOT granted",
	'an order is being taken');
my $busy = post('/orders', '"order-2"', \%hat);
is_problem($busy, 409, 'A request is outstanding for this Idempotency-Key', 'meanwhile the same key');
is($busy->{headers}{'retry-after'}, 1, 'try again in a second');
$session->query_safe('ROLLBACK');
is(status_of($slow), 201, 'the first one is answered');
is(post('/orders', '"order-2"', \%hat)->{headers}{'idempotent-replayed'}, 'true', 'and then replayed');

# A failed request leaves the key free.
sql("ALTER TABLE orders ADD CONSTRAINT broken CHECK (item <> 'scarf')");
is(post('/orders', '"order-3"', { %hat, item => 'scarf' })->{status}, 500, 'an order fails');
sql('ALTER TABLE orders DROP CONSTRAINT broken');
is(post('/orders', '"order-3"', { %hat, item => 'scarf' })->{status}, 201, 'and is taken when it comes again');
is(post('/orders', '"order-4"', {})->{status}, 400, 'bad input is refused');
is(post('/orders', '"order-4"', \%hat)->{status}, 201, 'before the key is used');

is_problem(post('/orders', '"order-5"', { %hat, %$_ }), 400, 'Not an order', 'an order that has no place in its table: ' . encode_json($_))
  for { quantity => 2**31 }, { quantity => 3e9 }, { quantity => 1.5 }, { item => "h\0t" };
is(post('/orders', '"order-5"', { %hat, quantity => 2**31 - 1 })->{status}, 201, 'the largest one has');

# --- a payment that could not be recorded: the provider is not asked

is_problem(post('/payments', '"pay-0"', { amount => $_ }), 400, 'Not a payment', "an amount of $_")
  for 1e19, 9_007_199_254_740_992, 0;	# 2**53 is a float in some versions of Perl
is_problem(post('/payments', '"pay-0"', { amount => 5 }, 'X-Account' => 'a' x 256), 400, 'Not an account', 'a long account');
is(scalar($receiver->requests('provider')), 0, 'the provider was not asked');

# --- a payment: a lease while the provider works

$receiver->switch('provider', 'hold');
$slow = post_later('/payments', '"pay-1"', { amount => 5 });
$receiver->wait_for('provider', requests => 1);
$busy = post('/payments', '"pay-1"', { amount => 5 });
is_problem($busy, 409, 'A request is outstanding for this Idempotency-Key', 'while a payment is under way');
cmp_ok($busy->{headers}{'retry-after'}, '>', 30, 'try again when the lease is over');
cmp_ok($busy->{headers}{'retry-after'}, '<=', 40, 'and no later');
is(sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND state LIKE '%transaction%'"), '0',
	'no transaction is open meanwhile');
is_problem(post('/payments', '"pay-1"', { amount => 6 }), 422,
	'Idempotency-Key is already used', 'meanwhile the same key for another payment');
$receiver->release('provider');
is(status_of($slow), 201, 'it is paid');
is(post('/payments', '"pay-1"', { amount => 5 })->{status}, 201, 'and replayed');
is(scalar($receiver->requests('provider')), 1, 'the provider was asked once');

# All attempts at one payment use the same key of the provider.
$receiver->switch('provider', 'fail');
is(post('/payments', '"pay-2"', { amount => 5 })->{status}, 500, 'the provider fails');
$receiver->switch('provider', 'ok');
is(post('/payments', '"pay-2"', { amount => 5 })->{status}, 201, 'the next try is at once, and goes well');
my @keys = map { $_->{headers}{'idempotency-key'} } ($receiver->requests('provider'))[ 1, 2 ];
is("@keys", '"ann/pay-2" "ann/pay-2"', 'the provider can tell that they are one');

# A payment that is declined permanently.
$receiver->switch('provider', 'gone');
is(post('/payments', '"pay-3"', { amount => 5 })->{status}, 402, 'a payment is declined');
$receiver->switch('provider', 'ok');
$again = post('/payments', '"pay-3"', { amount => 5 });
is_problem($again, 402, 'Declined', 'and stays so');
is($again->{headers}{'idempotent-replayed'}, 'true', 'as a replay');
is(sql('SELECT string_agg(amount::text, \' \' ORDER BY id) FROM payments'), '5 5', 'two have paid');

$session->quit;
done_testing();
