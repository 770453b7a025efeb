# A role that may subscribe cannot make the server reach what only the server
# can reach, however an address is written.  If this fails, webhooks give
# access to a metadata service, the database or the private network.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node;

# A proxy from the environment would hide the address.
{
	local @ENV{qw(http_proxy HTTP_PROXY all_proxy ALL_PROXY)} = ($receiver->url('')) x 4;
	$node = start_server('address', conf => "idempotency.webhook_allowed_networks = ''");
}
my $port = $receiver->{port};

my @hosts = qw(
  127.0.0.1 localhost 127.1 2130706433 0x7f.1 0x7f000001 0177.0.0.1 0.0.0.0 0
  [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1]
  10.0.0.1 172.16.0.1 192.168.0.1 100.64.0.1 169.254.169.254 168.63.129.16
  224.0.0.1 255.255.255.255 [fe80::1] [fc00::1] [fd00:ec2::254] [2002:7f00:1::]);
for my $i (0 .. $#hosts)
{
	sql("SELECT outbox_subscribe('host$i', 'http://$hosts[$i]:$port/ok/refused', retry_schedule => '{0 s}')");
}
sql(q(SELECT outbox_enqueue('t', '{}')));
$node->poll_query_until('postgres', 'SELECT count(*) = ' . @hosts . ' FROM outbox_dead');
for my $i (0 .. $#hosts)
{
	like(sql("SELECT last_error FROM outbox_dead WHERE subscription = 'host$i'"),
		qr/^address \S+ is not allowed by idempotency.webhook_allowed_networks$/, "$hosts[$i] is refused");
}
is(scalar($receiver->requests('refused')), 0, 'and nothing has arrived');

# --- a reload allows it

# Sets the list, and waits until sessions have it.
sub allow
{
	my ($list) = @_;
	alter_system('idempotency.webhook_allowed_networks', "'$list'");
	$node->poll_query_until('postgres',
		"SELECT setting = '$list' FROM pg_settings WHERE name = 'idempotency.webhook_allowed_networks'");
	return wait_for_pass($node);
}

allow('10.1.0.0/16, 127.0.0.1 ');
sql('SELECT outbox_redrive(name) FROM outbox_subscription');
$receiver->wait_for('refused', requests => 1);
$node->poll_query_until('postgres', 'SELECT sum(waiting) = 0 FROM outbox_subscriptions');
is(sql(q(SELECT count(*) FROM outbox_dead WHERE subscription IN ('host0', 'host9', 'host15'))), '2',
	'after a reload what is allowed is reached, and nothing else');

# --- a reload forbids it again, also over connections that are open

my $count = $receiver->requests('refused');
allow('');
sql(q(SELECT outbox_enqueue('t', '{}')));
$node->poll_query_until('postgres',
	'SELECT count(*) = ' . @hosts . ' FROM outbox_dead WHERE position = (SELECT max(position) FROM outbox_log)');
is(scalar($receiver->requests('refused')), $count,
	'a connection that is open is not used any more');

# --- https only, and ports: asked at each attempt, also over connections that are open

allow('127.0.0.1');
$count = $receiver->requests('refused');

sub refuses
{
	my ($name, $value, $error) = @_;

	alter_system("idempotency.$name", $value);
	$node->poll_query_until('postgres', "SELECT setting = $value FROM pg_settings WHERE name = 'idempotency.$name'");
	wait_for_pass($node);
	sql(q(SELECT outbox_enqueue('t', '{}')));
	$node->poll_query_until('postgres', q(SELECT count(*) > 0 FROM outbox_dead
		WHERE subscription = 'host0' AND position = (SELECT max(position) FROM outbox_log)));
	is(sql(q(SELECT last_error FROM outbox_dead WHERE subscription = 'host0' ORDER BY position DESC LIMIT 1)), $error, "$name: an attempt is refused");
	is(sql("SELECT last_error FROM outbox_subscriptions WHERE name = 'host0'"), $error, 'the subscription says why');
	like(sql(q(SELECT detail FROM idempotency_status() WHERE "check" = 'settings')), qr/\Q$error\E/, 'so does the status');
	$node->psql('postgres', "SELECT outbox_subscribe('new', 'http://127.0.0.1:$port/')", stderr => \my $stderr);
	like($stderr, qr/ERROR:  webhook url is not allowed\nDETAIL:  \Q$error\E\.\nHINT:  A superuser can change the setting/, 'and outbox_subscribe');
	is(scalar($receiver->requests('refused')), $count, 'nothing has arrived');
	alter_system("idempotency.$name", "DEFAULT");
	return wait_for_pass($node);
}

refuses('webhook_require_https', "'on'", 'idempotency.webhook_require_https refuses http');
refuses('webhook_allowed_ports', "'443, 8443'", "idempotency.webhook_allowed_ports refuses port $port");
alter_system('idempotency.webhook_allowed_ports', "'443, $port'");
$node->poll_query_until('postgres', "SELECT setting = '443, $port' FROM pg_settings WHERE name = 'idempotency.webhook_allowed_ports'");
wait_for_pass($node);
sql(q(SELECT outbox_redrive('host0')));
$receiver->wait_for('refused', requests => $count + 1);
pass('a port that is in the list is reached');

# --- what is no list is refused, and changes nothing

sub error_of
{
	my ($list) = @_;
	my (undef, undef, $stderr) = $node->psql('postgres',
		"ALTER SYSTEM SET idempotency.webhook_allowed_networks = '$list'");
	return $stderr;
}

like(error_of("127.0.0.1, $_"),
	qr/ERROR:  invalid value for parameter.*\nDETAIL:  "\Q$_\E" is not an IP address or a network in CIDR notation/,
	"\"$_\" is no network")
  for 'nonsense', '10.0.0.0/33', '10.0.0.0/8x', '10.0.0.0/', '127.0.0', '1' x 100;
my @many = map { "10.0.0.$_" } 1 .. 65;
like(error_of(join(', ', @many)), qr/DETAIL:  At most 64 networks can be allowed/, 'nor can more than 64 be allowed');
is(error_of(join(', ', @many[ 0 .. 63 ])), '', 'but 64 can');

# By hand, in the file: at a reload the old list stays, and at a start none counts.

allow('127.0.0.1');
$node->append_conf('postgresql.auto.conf', "idempotency.webhook_allowed_networks = '127.0.0.1, nonsense'");
$node->reload;
ok($node->wait_for_log(qr/LOG:  invalid value for parameter "idempotency.webhook_allowed_networks"/), 'a reload says so');
is(sql('SHOW idempotency.webhook_allowed_networks'), '127.0.0.1', 'and the old list stays');
$node->restart;
is(sql('SHOW idempotency.webhook_allowed_networks'), '', 'after a restart no network is allowed');

done_testing();
