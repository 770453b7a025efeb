# Requests are sent only to receivers with a valid certificate, over TLS 1.2 or
# later, and with the credentials that the administrator has put there for that
# receiver: a token that is read when it is sent, a client certificate, and
# signatures of Ed25519 besides those of the secret.  If this fails, events go
# to an attacker, a token or key goes to another host, a new token or
# certificate is not used, or receivers refuse events.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;
use Tls;

use constant { LEAVING_EVENTS => 200 };

my $dir = PostgreSQL::Test::Utils::tempdir();
make_authority("$dir/ours");
make_authority("$dir/theirs");
issue_certificate("$dir/ours", "$dir/server");
issue_certificate("$dir/theirs", "$dir/stranger");
issue_certificate("$dir/ours", "$dir/other_name", san => 'DNS:example.com');
issue_certificate("$dir/ours", "$dir/expired",
	dates => [ qw(-startdate 20200101000000Z -enddate 20200102000000Z) ]);
issue_certificate("$dir/ours", "$dir/$_", cn => $_) for qw(relay successor revoked);
issue_certificate("$dir/theirs", "$dir/foreign", cn => 'foreign');
revoke_certificate("$dir/ours", "$dir/revoked");

my $program = Program->start([ 'node', "$FindBin::RealBin/../programs/tls.js", $dir ]);
my ($ports) = $program->line('ports') =~ /^ports (.*)/;
my %ports = %{ JSON::PP->new->decode($ports) };

my $credentials = "$dir/credentials";
$ENV{SSL_CERT_FILE} = "$dir/ours/ca.crt";
my $node = start_server('tls', conf => "idempotency.sweep_interval = 100ms");

sub port_url
{
	my ($port) = @_;
	return "https://127.0.0.1:$ports{$port}/";
}

# All requests to a port.
sub requests
{
	my ($port) = @_;
	$program->say('report');
	my ($report) = $program->line('report') =~ /^report (.*)/;
	return grep { $_->{name} eq $port } @{ JSON::PP->new->decode($report) };
}

# The last one, without the need for a key that it does not have.
sub last_request
{
	my ($port) = @_;
	my @all = requests($port);
	return $all[-1] // {};
}

# Subscribes a port under a name; an event is dead after one failed attempt.
sub subscribe_port
{
	my ($name, $port, $more) = @_;
	my $secret = planted_secret();
	sql("SELECT outbox_subscribe('$name', '@{[ port_url($port) ]}', topics => '{$name}', secret => '$secret',"
		  . " retry_schedule => '{0 s}', timeout => '10 s'" . ($more ? ", $more" : '') . ')');
	return $secret;
}

# Sends an event; returns the last error, or '' if it was delivered.
sub send_event
{
	my ($name, $more) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $through = 'SELECT delivered + dead FROM outbox_subscriptions WHERE name = ';
	my $before = sql("$through'$name'");
	my $position = sql("SELECT outbox_enqueue('$name', '{}'" . ($more // '') . ')');
	wait_until($node, "SELECT ($through'$name') > $before", "$name: the event is through");
	return sql("SELECT coalesce((SELECT coalesce(last_error, 'status ' || last_status) FROM outbox_dead"
		  . " WHERE subscription = '$name' AND position = $position), '')");
}

# Writes a file for the receiver on a port, as a new file of that name.
sub put
{
	my ($port, $name, $content) = @_;
	my $receiver = "$credentials/postgres/127.0.0.1:$ports{$port}";
	for ($credentials, "$credentials/postgres", $receiver)
	{
		-d $_ or mkdir $_ or die "cannot make $_: $!";
	}
	append_to_file("$receiver/new", $content);
	rename "$receiver/new", "$receiver/$name" or die "cannot rename $name: $!";
	return "$receiver/$name";
}

sub put_certificate
{
	my ($port, $name, $certificate) = @_;
	return put($port, $name, slurp_file("$dir/$certificate.crt") . slurp_file("$dir/$certificate.key"));
}

# --- certificates of servers

my %refused = (
	unknown => qr/unable to get local issuer certificate/,
	other_name => qr/subject name/,
	expired => qr/certificate has expired/);
for my $port (sort keys %refused)
{
	subscribe_port($port, $port);
	like(send_event($port), $refused{$port}, "$port: the certificate is refused");
	is(scalar(my @none = requests($port)), 0, "$port: nothing is sent");
}
for my $port (qw(good tls13))
{
	subscribe_port($port, $port);
	is(send_event($port), '', "$port: the event is delivered");
}
is(last_request('tls13')->{tls}, 'TLSv1.3', 'a server may want TLS 1.3');

# What is done with a new file is tested at the end.
append_to_file("$dir/ours/ca.crt", slurp_file("$dir/theirs/ca.crt"));

# --- a server that ends each connection after some requests, without processing the next

subscribe_port('leaving', 'leaving', "ordered => false");
sql("UPDATE outbox_subscription SET retry_schedule = array_fill('0'::interval, '{20}') WHERE name = 'leaving'");
sql("SELECT outbox_resume('leaving')");
sql("SELECT count(outbox_enqueue('leaving', '{}')) FROM generate_series(1, @{[ LEAVING_EVENTS ]})");
wait_until($node, "SELECT delivered + dead = @{[ LEAVING_EVENTS ]} FROM outbox_subscriptions WHERE name = 'leaving'",
	'leaving: all events are through');
my @left = requests('leaving');
my %ids = map { $_->{id} => 1 } @left;
my %connections = map { $_->{port} => 1 } @left;
is(sql("SELECT dead FROM outbox_subscriptions WHERE name = 'leaving'"), '0', 'leaving: no event is dead');
is(scalar(keys %ids), LEAVING_EVENTS, 'leaving: every event has come');
is(scalar(@left), LEAVING_EVENTS, 'leaving: once: nothing that was processed is sent again');
cmp_ok(scalar(keys %connections), '>', 1, 'leaving: the server has left');

# --- signatures of Ed25519

my $secret = subscribe_port('signed', 'good');
is(sql("SELECT outbox_public_key('signed') IS NULL"), 't', 'no signing key at first');
my $first = sql("SELECT outbox_rotate_key('signed')");
is(sql("SELECT outbox_public_key('signed')"), $first, 'the public key is that of the new signing key');
$program->say("secret $secret", "key $first");
is(send_event('signed'), '', 'the event is signed');
my $request = last_request('good');
is($request->{signatures}, 'v1 v1a', 'by the secret and the key');
is($request->{v1}, JSON::PP::true, 'standardwebhooks verifies the one');
is_deeply($request->{v1a}, [0], 'node the other');

my $second = sql("SELECT outbox_rotate_key('signed', overlap => '1 h')");
$program->say("key $second");
send_event('signed');
$request = last_request('good');
is($request->{signatures}, 'v1 v1a v1a', 'in the overlap, both keys sign');
is_deeply($request->{v1a}, [ 0, 1 ], 'and a receiver that has either verifies the event');
is($request->{v1}, JSON::PP::true, 'standardwebhooks ignores what it does not know');
my $third = sql("SELECT outbox_rotate_key('signed', overlap => '0')");
$program->say("key $third");
send_event('signed');
is_deeply(last_request('good')->{v1a}, [2], 'without an overlap, only the new one signs');
wait_until($node, "SELECT old_signing_key IS NULL AND signing_key IS NOT NULL FROM outbox_subscription WHERE name = 'signed'",
	'the old one is forgotten');
is(sql("SELECT outbox_rotate_key('signed', '0', '') IS NULL"), 't', 'a signing key can be removed');
send_event('signed');
is(last_request('good')->{signatures}, 'v1', 'then only the secret signs');

# --- tokens

is(error_code($node, 'postgres', "SELECT outbox_alter('good', authorization_file => 'token')"),
	'55000', 'without a directory there are no tokens');
alter_system('idempotency.webhook_credentials_directory', "'$credentials'");
wait_until($node, "SELECT current_setting('idempotency.webhook_credentials_directory') <> ''", 'there is one now');
subscribe_port('token', 'good', "authorization_file => 'token'");

my $planted = PLANTED;
my $file = put('good', 'token', "Bearer first$planted\n");
is(send_event('token'), '', 'an event with a token');
is(last_request('good')->{authorization}, "Bearer first$planted", 'the token is that of the file');
put('good', 'token', "Bearer second$planted");
send_event('token');
is(last_request('good')->{authorization}, "Bearer second$planted", 'a new token is used with the next request');
send_event('token', q(, headers => '{"authorization": "Bearer forged"}'));
is(last_request('good')->{authorization}, "Bearer second$planted", 'an event cannot replace it');

my $count = () = requests('good');
my @wrong = (
	[ "", qr/^authorization_file "token" is empty$/ ],
	[ "\n", qr/^authorization_file "token" is empty$/ ],
	[ "Bearer $planted\nX-Forged: 1\n", qr/^authorization_file "token" is not one line/ ],
	[ "Bearer $planted\x01", qr/^authorization_file "token" is not one line/ ],
	[ "Bearer $planted\0", qr/^authorization_file "token" has a null byte$/ ],
	[ 'Bearer ' . $planted x 1000, qr/^authorization_file "token" is too long$/ ]);
for my $case (@wrong)
{
	put('good', 'token', $case->[0]);
	like(send_event('token'), $case->[1], 'a file that is no token');
}
unlink $file;
like(send_event('token'), qr/^authorization_file "token" cannot be opened: No such file/, 'a token that is missing');
append_to_file("$dir/elsewhere", "Bearer $planted");
symlink "$dir/elsewhere", $file or die $!;
like(send_event('token'), qr/outside of the receiver's directory$/, 'a link to another directory');
unlink $file;
mkdir $file or die $!;
like(send_event('token'), qr/is not a regular file$/, 'a directory');
rmdir $file;
run_command([ 'mkfifo', $file ]);
like(send_event('token'), qr/is not a regular file$/, 'a pipe, for which the relay does not wait');
unlink $file;
put('good', 'real', "Bearer third$planted");
symlink 'real', $file or die $!;
is(scalar(my @sent = requests('good')), $count, 'nothing was sent meanwhile');
is(send_event('token'), '', 'a link in the same directory is followed');
is(last_request('good')->{authorization}, "Bearer third$planted", 'with its token');

subscribe_port('stolen', 'tls13', "authorization_file => 'token'");
like(send_event('stolen'), qr/cannot be opened: No such file/, 'a token is not sent to another receiver');
sql("SELECT outbox_alter('token', url => '@{[ port_url('tls13') ]}')");
is(sql("SELECT authorization_file IS NULL FROM outbox_subscription WHERE name = 'token'"), 't',
	'with another receiver, the name of the file is dropped');

# --- signing keys in files

my ($old_key, $new_key) = map { sql('SELECT outbox_key_generate()') } 1 .. 2;
my $keys = 3;		# that the program has
is(error_code($node, 'postgres', q(SELECT outbox_rotate_key('signed', signing_key => 'file:key'))), '55000', 'the file of a signing key has to be there');
put('good', 'key', "$old_key\n");
my $public = sql(q(SELECT outbox_rotate_key('signed', signing_key => 'file:key')));
like($public, qr/^whpk_/, 'then its public key is returned');
is(sql(q(SELECT outbox_public_key('signed'))), $public, 'also later');
$program->say("secret $secret", "key $public");
is(send_event('signed'), '', 'an event is signed with the key of the file');
is_deeply(last_request('good')->{v1a}, [$keys], 'and a receiver verifies it');
put('good', 'key', "$new_key\n$old_key\n");
$program->say('key ' . sql(q(SELECT outbox_public_key('signed'))));
send_event('signed');
$request = last_request('good');
is($request->{signatures}, 'v1 v1a v1a', 'two lines are two signatures');
is_deeply($request->{v1a}, [ $keys, $keys + 1 ], 'of the new key and the old one');
is($request->{v1}, JSON::PP::true, 'besides that of the secret');
put('good', 'key', $secret);
like(send_event('signed'), qr/^signing_key "key" does not consist of one or two lines that can sign$/, 'a secret is no key');
is(sql(q(SELECT outbox_rotate_key('signed', signing_key => '') IS NULL)), 't', 'a key in a file can be removed');
send_event('signed');
is(last_request('good')->{signatures}, 'v1', 'then only the secret signs');

# --- client certificates

# Subscribes a port, with this client certificate if there is one, and sends an
# event.
sub send_certificate
{
	my ($name, $port, $certificate) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	put_certificate($port, "$name.pem", $certificate) if $certificate;
	subscribe_port($name, $port, $certificate ? "client_certificate => '$name.pem'" : undef);
	return send_event($name);
}

isnt(send_certificate('bare', 'mutual12', undef), '', 'a server that wants a certificate gets none');
is(send_certificate('mutual', 'mutual', 'relay'), '', 'a client certificate is accepted');
is(last_request('mutual')->{client}, 'relay', 'it is that of the file');
put_certificate('mutual', 'mutual.pem', 'successor');
is(send_event('mutual'), '', 'another certificate');
is(last_request('mutual')->{client}, 'successor', 'is used with the next request, over another connection');
isnt(send_certificate('foreign', 'mutual', 'foreign'), '', 'that of another authority is refused');
is(send_certificate('valid', 'revoking', 'relay'), '', 'a server with a list of revoked certificates');
isnt(send_certificate('revoked', 'revoking', 'revoked'), '', 'does not accept one of them');
is_deeply([ map { $_->{client} } requests('revoking') ], ['relay'], 'nor the event');
is_deeply([ requests('mutual12') ], [], 'nothing comes without a certificate');
put('revoking', 'valid.pem', slurp_file("$dir/relay.crt"));
like(send_event('valid'), qr/private key|client key/, 'a certificate without its key');
put('revoking', 'valid.pem', "$planted\n");
like(send_event('valid'), qr/client certificate/, 'a file that is no certificate');

# --- another authority in the file of trusted ones

wait_until($node, "SELECT s.delivered > 0 FROM outbox_subscriptions s, outbox_redrive('unknown') WHERE s.name = 'unknown'",
	'an authority that was added to the file of trusted ones counts soon');

# --- what is refused

my $subscribe = q(SELECT outbox_subscribe('x', '%s', %s));
for my $case (
	[ 'https://example.com/', "authorization_file => '../token'" ],
	[ 'https://example.com/', "authorization_file => '/etc/passwd'" ],
	[ 'https://example.com/', "authorization_file => '.token'" ],
	[ 'https://example.com/', "authorization_file => ''" ],
	[ 'https://example.com/', "client_certificate => repeat('x', 256)" ],
	[ 'http://example.com/', "authorization_file => 'token'" ],
	[ 'http://example.com/', "client_certificate => 'client.pem'" ],
	[ 'https://example.com/', q(authorization_file => 'token', headers => '{"AUTHORIZATION": "x"}') ],
	[ 'https://example.com/', "signing_key => 'whsk_'" ],
	[ 'https://example.com/', "signing_key => 'whsk_' || replace(encode(repeat('k', 64)::bytea, 'base64'), E'\\n', '')" ],
	[ 'https://example.com/', "signing_key => outbox_secret_generate()" ])
{
	is(error_code($node, 'postgres', sprintf($subscribe, @$case)), '22023', "refused: $case->[1]");
}
is(error_code($node, 'postgres', q(SELECT outbox_subscribe('x', NULL, signing_key => outbox_key_generate()))),
	'22023', 'refused: a signing key without a URL');
is(error_code($node, 'postgres', q(ALTER SYSTEM SET idempotency.webhook_credentials_directory = 'relative')),
	'22023', 'refused: a directory with a relative name');

unlike(slurp_file($node->logfile), qr/Bearer \w*$planted/, 'no token is in the log');
is(sql("SELECT count(*) FROM outbox_attempt WHERE concat(error, answer) LIKE '%$planted%'"), '0', 'nor in attempts');

done_testing();
