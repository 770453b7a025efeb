# The first request of a new subscription does not wait for others whose
# endpoints are fast and have a backlog.  If this fails, such subscriptions keep
# all others from sending until their backlog is delivered.
#
# Needs: nginx

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;

use constant { FAST => 16, BACKLOG => 20000, NEW => 4 };

my $dir = PostgreSQL::Test::Utils::tempdir();
my $port = PostgreSQL::Test::Cluster::get_free_port();
append_to_file("$dir/nginx.conf", <<EOF);
daemon off;
master_process off;
pid $dir/nginx.pid;
events { worker_connections 4096; }
http {
	access_log off;
	client_body_temp_path $dir/body;
	proxy_temp_path $dir/proxy;
	fastcgi_temp_path $dir/fastcgi;
	uwsgi_temp_path $dir/uwsgi;
	scgi_temp_path $dir/scgi;
	keepalive_requests 1000000;
	server { listen 127.0.0.1:$port; location / { return 200; } }
}
EOF
my $nginx = Program->start([ 'nginx', '-e', 'stderr', '-c', "$dir/nginx.conf" ], PATH => "$ENV{PATH}:/usr/sbin:/sbin");
my $receiver = Receiver->start;
my $node = start_server('first_request', conf => "log_statement = none\n");

sql("SELECT outbox_subscribe('fast ' || i, 'http://127.0.0.1:$port/', topics => '{fast}', ordered => false)"
	  . ' FROM generate_series(1, ' . FAST . ') i');
subscribe($node, $receiver, "/ok/new$_", topics => "'{new}'") for 1 .. NEW;
sql("SELECT count(outbox_enqueue('fast', '1')) FROM generate_series(1, " . BACKLOG . ')');
wait_until($node, "SELECT bool_and(delivered > 0) FROM outbox_subscriptions WHERE name LIKE 'fast%'", 'the backlog is being delivered');
sql("SELECT outbox_enqueue('new', '1')");
$receiver->wait_for("new$_", events => 1) for 1 .. NEW;
cmp_ok(sql("SELECT avg(delivered) FROM outbox_subscriptions WHERE name LIKE 'fast%'"), '<', BACKLOG / 2,
	'new subscriptions get their first events long before it is delivered');
wait_until($node, 'SELECT bool_and(delivered = ' . BACKLOG . ") FROM outbox_subscriptions WHERE name LIKE 'fast%'", 'which it is at the end');

done_testing();
