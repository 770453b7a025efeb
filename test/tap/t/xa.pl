# An application has its orders in one database and its parcels in another, and
# a transaction manager of Java, Bitronix, commits in both or in neither.  It is
# killed at each step in between.  If this fails, there is an order without a
# parcel, or an event of one that was rolled back.
#
# Needs: default-jdk-headless libpostgresql-jdbc-java libbtm-java libgeronimo-jta-1.2-spec-java
# Needs: libslf4j-java

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;

use constant { BUILD_S => 300 };

my $dir = PostgreSQL::Test::Utils::tempdir;
my $class_path = join(':', $dir, map { "/usr/share/java/$_.jar" } qw(postgresql btm geronimo-jta-1.2-spec slf4j-api slf4j-simple));
my $receiver = Receiver->start;
my $node = new_server('xa', conf => <<'EOF');
max_prepared_transactions = 10
listen_addresses = '127.0.0.1'	# JDBC has no sockets
idempotency.sweep_interval = 50ms
EOF
$node->start;

for my $db (qw(orders depot))
{
	my ($sku, $topic) = $db eq 'orders' ? qw(hat ordered) : qw(box packed);
	sql("CREATE DATABASE $db");
	sql("CREATE EXTENSION idempotency; SELECT stock_receive('$sku', 10)", $db);
	subscribe($node, $receiver, "/ok/$topic", topics => "'{$topic}'", db => $db);
}
IPC::Run::run([ 'javac', '-encoding', 'UTF-8', '-cp', $class_path, '-d', $dir, "$FindBin::RealBin/../programs/drivers/Xa.java" ],
	IPC::Run::timeout(BUILD_S)) or die 'Xa.java cannot be compiled';

sub start_manager
{
	my (%env) = @_;
	return Program->start([ 'java', '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn', '-cp', $class_path, 'Xa' ],
		PGPORT => $node->port, PGUSER => sql('SELECT current_user'), LOG_DIR => $dir, %env)->wait_for_start('ready');
}

# These orders, and no others, are in both databases, and in the events.
sub are_placed
{
	my ($what, @orders) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $left = 10 - @orders;

	is(sql('SELECT count(*) FROM pg_prepared_xacts'), 0, "$what: no transaction is left");
	is(sql('SELECT count(*) FROM stock_counters() WHERE in_use', $_), 0, "$what: nor an item in doubt in $_") for qw(orders depot);
	is(sql("SELECT available FROM stock_level('hat')", 'orders'), $left, "$what: the hats");
	is(sql("SELECT available FROM stock_level('box')", 'depot'), $left, "$what: the boxes");
	is(sql("SELECT string_agg(key, ' ' ORDER BY key) FROM idem_key", 'orders'), "@orders", "$what: the claims");
	for my $topic (qw(ordered packed))
	{
		$receiver->wait_for($topic, events => scalar @orders);
		# A stop of the server may repeat the last ones, under their ids.
		my %by_id = map { $_->{id} => $_->{data} } $receiver->requests($topic, qw(id data));
		is(join(' ', sort values %by_id), "@orders", "$what: the events");
	}
	is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok', $_), '0', "$what: the ledger of $_") for qw(orders depot);
	return;
}

my $manager = start_manager();
$manager->say('1-done commit', '2-undone rollback', '3-done commit');
is($manager->line($_), $_, $_) for '1-done commit', '2-undone rollback', '3-done commit';
$manager->stop;
are_placed('without a crash', qw(1-done 3-done));

my @placed = qw(1-done 3-done);
for my $crash (qw(preparing prepared committing committed))
{
	my $order = @placed + 2 . "-$crash";
	$manager = start_manager(CRASH => $crash);
	$manager->say("$order commit");
	ok($manager->wait_for_end, "the manager dies: $crash");
	is(sql('SELECT count(*) FROM pg_prepared_xacts'), { preparing => 1, prepared => 2, committing => 2, committed => 1 }->{$crash},
		'and leaves what is prepared');
	$node->restart if $crash eq 'committing';
	push @placed, $order if $crash =~ /^commit/;
	start_manager()->stop;
	are_placed($crash, @placed);
}

done_testing();
