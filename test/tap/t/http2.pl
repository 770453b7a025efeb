# If a server supports HTTP/2 over TLS, thousands of events use few
# connections, and a server that closes one from time to time, as servers do,
# costs no event an attempt.  If HTTP/2 is missing or broken, HTTP/1.1 is used.
# If this fails, events wait for retries, or never arrive, because of how they
# are sent.
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

use constant { EVENTS => 4000, KEEPALIVE_REQUESTS => 200, STREAMS => 4 };

# Long enough for a waiting event to be noticed.
use constant TIMEOUT_S => 150;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/server");

my $receiver = Receiver->start;
my @names = qw(turnover narrow plain early prompt);
my %ports = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } @names;

sub nginx_server
{
	my ($name, $listen, $lines) = @_;
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
		  . nginx_server('turnover', ' http2', 'keepalive_requests ' . KEEPALIVE_REQUESTS . "; $pass")
		  . nginx_server('narrow', ' http2', 'http2_max_concurrent_streams ' . STREAMS . "; $pass")
		  . nginx_server('plain', '', $pass)
		  . nginx_server('early', ' http2', 'location / { return 200; }')
		  . nginx_server('prompt', ' http2', 'location / { return 200; }')
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
my $broken = Program->start([ 'node', "$FindBin::RealBin/../programs/broken_http2.js", "$dir/server" ]);
my ($broken_port) = $broken->line('port') =~ /(\d+)/;

# Environment variables that a shell may have for other programs.
$ENV{SSL_CERT_FILE} = "$dir/server.crt";
$ENV{SSLKEYLOGFILE} = "$dir/keys";
$ENV{$_} = 'http://127.0.0.1:1' for qw(http_proxy https_proxy HTTPS_PROXY ALL_PROXY);
$ENV{CURL_SSL_BACKEND} = 'none';
my $node = start_server('http2');
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

# libcurl may give up a request that meets a GOAWAY, or whose answer comes
# early; then it is repeated over HTTP/1.1.  While that connection is open,
# other requests may use it too, so only a share of all requests has the
# expected version.
sub deliver_through_nginx
{
	my ($name, $count, $version, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $share = delete $params{share} // 0.9;

	deliver($name, "https://127.0.0.1:$ports{$name}/ok/$name", $count, %params);
	my ($versions, $connections, $events) = nginx_log($name);
	cmp_ok($versions->{$version} // 0, '>=', $share * $count, "$name: over $version");
	is(scalar(keys %$events), $count, "$name: every event has come");
	return values %$connections;
}

# --- a server that sends GOAWAY after a number of requests

my @connections = deliver_through_nginx('turnover', EVENTS, 'HTTP/2.0');
cmp_ok(scalar(grep { $_ == KEEPALIVE_REQUESTS } @connections), '>=',
	EVENTS / KEEPALIVE_REQUESTS / 2, 'connections are used until the server ends them');
is(scalar(grep { !$_->{verified} } $receiver->requests('turnover', 'verified')), 0,
	'what comes over HTTP/2 is what was signed');

# --- a server that takes fewer requests at a time than there are

deliver_through_nginx('narrow', 500, 'HTTP/2.0');

# --- a server without HTTP/2

deliver_through_nginx('plain', 500, 'HTTP/1.1');

# --- a server that answers before it has read the event

deliver_through_nginx('early', 100, 'HTTP/2.0', share => 0.1, payload => "to_jsonb(repeat('x', 100000))");
deliver_through_nginx('prompt', 2000, 'HTTP/2.0', share => 0.1);

ok(!-e "$dir/keys", 'the keys of connections are in no file, though the environment asks for it');

# --- broken HTTP/2

deliver('reset', "https://127.0.0.1:$broken_port/reset", 100);
deliver('drop', "https://127.0.0.1:$broken_port/drop", 400, schedule => '{0 s,1 s,1 s,1 s,1 s,1 s}');

$broken->say('report');
my ($report) = $broken->line('report') =~ /^report (.*)/;
$report = JSON::PP->new->decode($report);
my %reset = %{ $report->{'/reset'}{requests} };
is("$report->{'/reset'}{events} $reset{'1.1'}", '100 100',
	'reset: what fails over HTTP/2 is sent again over HTTP/1.1, once');
cmp_ok($reset{'2.0'}, '<=', 100, 'reset: and only then');
is($report->{'/drop'}{events}, 400, 'drop: a connection that breaks loses no event');

# --- an endpoint that quotes requests where that is not allowed

my $quoting = Program->start([ 'node', "$FindBin::RealBin/../programs/quoting_http2.js", "$dir/server" ]);
my ($quoting_port) = $quoting->line('port') =~ /(\d+)/;

sql("SELECT outbox_subscribe('quoting', 'https://127.0.0.1:$quoting_port/', topics => '{quoting}',"
	  . " ordered => false, retry_schedule => '{0 s}', timeout => '1 s')");
sql(q(SELECT outbox_enqueue('quoting', '{}')));
wait_until($node, "SELECT delivered = 1 FROM outbox_subscriptions WHERE name = 'quoting'", 'quoting: at first all is well');
sql("SELECT count(outbox_enqueue('quoting', '{\"card\": \"@{[ PLANTED ]}\"}')) FROM generate_series(1, 4)");
wait_until($node, "SELECT dead = 4 FROM outbox_subscriptions WHERE name = 'quoting'", 'quoting: then nothing is answered');
is(sql("SELECT string_agg(last_error, ' ') FROM outbox_dead WHERE last_error LIKE '%@{[ PLANTED ]}%'"), '',
	'quoting: no event is in what is said of another');
unlike(slurp_file($node->logfile), qr/is dead.*@{[ PLANTED ]}/, 'quoting: nor is it in the log');

done_testing();
