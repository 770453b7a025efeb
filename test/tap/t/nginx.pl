# Requests go through nginx over HTTP/1.1, which ends a connection from time to
# time, as servers do, answers early, or also offers HTTP/2, and cost no event an
# attempt.  If this fails, events wait for retries, or never arrive, because of
# how they are sent.
#
# Needs: nginx

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
use Time::HiRes qw(time usleep);
use Tls;

use constant { EVENTS => 4000, KEEPALIVE_REQUESTS => 20 };

# Long enough for a waiting event to be noticed.
use constant TIMEOUT_S => 150;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/server");

my $receiver = Receiver->start;
my @names = qw(turnover plain early prompt);
my %ports = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } @names;

sub nginx_server
{
	my ($name, $lines, $listen) = @_;
	$listen //= ' http2';
	return <<EOF;
	server {
		listen 127.0.0.1:$ports{$name} ssl$listen;
		access_log $dir/$name.log requests;
		$lines
	}
EOF
}

sub start_nginx
{
	my $pass = 'location / { proxy_pass http://receiver; }';
	append_to_file("$dir/nginx.conf", <<EOF
daemon off;
master_process off;
pid $dir/nginx.pid;
events { }
http {
	log_format requests '\$server_protocol \$connection \$http_webhook_id';
	ssl_certificate $dir/server.crt;
	ssl_certificate_key $dir/server.key;
	client_body_temp_path $dir/body;
	proxy_temp_path $dir/proxy;
	fastcgi_temp_path $dir/fastcgi;
	uwsgi_temp_path $dir/uwsgi;
	scgi_temp_path $dir/scgi;
	proxy_http_version 1.1;
	proxy_set_header Connection '';
	upstream receiver { server 127.0.0.1:$receiver->{port}; keepalive 32; }
EOF
		  . nginx_server('turnover', 'keepalive_requests ' . KEEPALIVE_REQUESTS . "; $pass")
		  . nginx_server('plain', $pass, '')
		  . nginx_server('early', 'location / { return 200; }')
		  . nginx_server('prompt', 'location / { return 200; }')
		  . "}\n");
	my $program = Program->start([ 'nginx', '-e', 'stderr', '-c', "$dir/nginx.conf" ],
		PATH => "$ENV{PATH}:/usr/sbin:/sbin");

	# It listens when this file exists.
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $program if -s "$dir/nginx.pid";
		usleep(100_000);
	}
	die 'nginx does not start';
}

my $nginx = start_nginx();

# Environment variables that a shell may have for other programs.
$ENV{SSL_CERT_FILE} = "$dir/server.crt";
$ENV{SSLKEYLOGFILE} = "$dir/keys";
$ENV{$_} = 'http://127.0.0.1:1' for qw(http_proxy https_proxy HTTPS_PROXY ALL_PROXY);
$ENV{CURL_SSL_BACKEND} = 'none';
my $node = start_server('nginx');
delete @ENV{qw(SSLKEYLOGFILE http_proxy https_proxy HTTPS_PROXY ALL_PROXY CURL_SSL_BACKEND)};

# Delivers events to an endpoint.  By default an event is dead after one failed
# attempt.
sub deliver
{
	my ($name, $url, $count, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $schedule = $params{schedule} // '{0 s}';
	my $payload = $params{payload} // "'{}'";
	my $start = time();

	sql("SELECT outbox_subscribe('$name', '$url', topics => '{$name}', secret => '"
		  . $receiver->new_secret($name)
		  . "', retry_schedule => '$schedule', max_in_flight => 32,"
		  . " timeout => '@{[ TIMEOUT_S ]} s')");
	sql("SELECT count(outbox_enqueue('$name', $payload)) FROM generate_series(1, $count)");
	wait_until($node, 'SELECT position = last_value AND waiting = 0'
		  . " FROM outbox_subscriptions, outbox_position_seq WHERE name = '$name'",
		"$name: all events are through");
	is(sql("SELECT dead, last_error FROM outbox_subscriptions WHERE name = '$name'"), '0|',
		"$name: without a failed attempt") unless $params{schedule};
	cmp_ok(time() - $start, '<', TIMEOUT_S, "$name: without waiting for a timeout");
	return;
}

# What nginx has logged: how many requests there were of each version, on each
# connection and of each event.
sub nginx_log
{
	my ($name) = @_;
	my (%versions, %connections, %events);
	for (split /\n/, slurp_file("$dir/$name.log"))
	{
		my ($version, $connection, $id) = split / /;
		$versions{$version}++;
		$connections{$connection}++;
		$events{$id}++;
	}
	return (\%versions, \%connections, \%events);
}

sub deliver_through_nginx
{
	my ($name, $count, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	deliver($name, "https://127.0.0.1:$ports{$name}/ok/$name", $count, %params);
	my ($versions, $connections, $events) = nginx_log($name);
	is(join(' ', keys %$versions), 'HTTP/1.1', "$name: over HTTP/1.1, whatever is offered");
	is(scalar(keys %$events), $count, "$name: every event has come");
	return values %$connections;
}

# --- a server that ends each connection after a number of requests

my @connections = deliver_through_nginx('turnover', EVENTS);
cmp_ok(scalar(grep { $_ == KEEPALIVE_REQUESTS } @connections), '>=',
	EVENTS / KEEPALIVE_REQUESTS / 2, 'connections are used until the server ends them');
is(scalar(grep { !$_->{verified} } $receiver->requests('turnover', 'verified')), 0, 'what comes is what was signed');

# --- a server without HTTP/2

deliver_through_nginx('plain', 500);

# --- a server that answers before it has read the event

deliver_through_nginx('early', 100, payload => "to_jsonb(repeat('x', 100000))");
deliver_through_nginx('prompt', 2000);

ok(!-e "$dir/keys", 'the keys of connections are in no file, though the environment asks for it');

# --- a server that only has HTTP/2

my $only2 = Program->start([ 'node', "$FindBin::RealBin/../programs/only_http2.js", "$dir/server" ]);
my ($only2_port) = $only2->line('port') =~ /(\d+)/;

sql("SELECT outbox_subscribe('only2', 'https://127.0.0.1:$only2_port/', topics => '{only2}', retry_schedule => '{0 s,1 h}')");
sql(q(SELECT outbox_enqueue('only2', '{}')));
wait_until($node, q(SELECT waiting = 1 AND last_error LIKE '%no application protocol%' FROM outbox_subscriptions WHERE name = 'only2'),
	'a server that only has HTTP/2 is told apart');

# --- an endpoint that quotes requests where that is not allowed

my $quoting = Program->start([ 'node', "$FindBin::RealBin/../programs/quoting.js" ]);
my ($quoting_port) = $quoting->line('port') =~ /(\d+)/;
my @kinds = qw(status length encoding chunk header folded);

for my $kind (@kinds)
{
	sql("SELECT outbox_subscribe('$kind', 'http://127.0.0.1:$quoting_port/$kind', topics => '{quoting}', retry_schedule => '{0 s}', timeout => '1 s')");
}
sql("SELECT outbox_enqueue('quoting', '{\"card\": \"@{[ PLANTED ]}\"}')");
wait_until($node, "SELECT sum(dead + delivered) = @{[ scalar @kinds ]} FROM outbox_subscriptions WHERE name = ANY ('{@{[ join(',', @kinds) ]}}')", 'quoting: answers that are not HTTP have come');
cmp_ok(sql("SELECT count(*) FROM outbox_dead"), '>=', 3, 'quoting: and are failures');
is(sql("SELECT string_agg(last_error, ' ') FROM outbox_dead WHERE last_error LIKE '%@{[ PLANTED ]}%'"), '',
	'quoting: no event is in what is said of it');
unlike(slurp_file($node->logfile), qr/is dead.*@{[ PLANTED ]}/, 'quoting: nor is it in the log');

done_testing();
