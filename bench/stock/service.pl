# service.pl CONTENDER CLIENTS SECONDS FAILS_AFTER: requests to a service that
# reserves one piece of item-1, as such services run.
#
# ours: one call of stock_reserve.
# redis: the script in Redis, and then a row in the log of the database.
#
# One request in FAILS_AFTER fails at its end: its transaction is rolled back,
# as happens when a constraint is violated or a deadlock is ended. Each client
# is a process. Prints the requests that were not rolled back, in a second.
# REDIS_SOCKET, REDIS_SCRIPT, and the PG* variables say where.

use strict;
use warnings FATAL => 'all';

use DBI;
use Redis;
use Time::HiRes qw(time);

use constant RESERVATION_S => 86400;

my ($contender, $clients, $seconds, $fails_after) = @ARGV;

sub serve
{
	my ($client) = @_;
	my $db = DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, AutoCommit => 1 });
	my $redis = $contender eq 'redis' ? Redis->new(sock => $ENV{REDIS_SOCKET}) : undef;
	my $statement = $db->prepare($redis ? q(INSERT INTO peer_log (sku, quantity, reservation) VALUES ('item-1', 1, ?))
		: q(SELECT outcome FROM stock_reserve('item-1', 1, ?)));
	my ($requests, $failed, $until) = (0, 0, time + $seconds);

	srand($client * 1e6 + $$);
	while (time < $until)
	{
		my $name = sprintf('%06d-%012d-%04d-4b1d-9c1e-8a7f7a', rand(1e6), rand(1e12), $client);
		my $fails = rand($fails_after) < 1;

		$db->begin_work if $fails;
		$redis->evalsha($ENV{REDIS_SCRIPT}, 2, 'stock:item-1', "reservation:$name", 1, RESERVATION_S) if $redis;
		$statement->execute($name);
		$statement->fetchall_arrayref unless $redis;
		$db->rollback if $fails;
		$requests++;
		$failed += $fails;
	}
	$db->disconnect;
	return $requests - $failed;
}

my @pipes;
for my $client (1 .. $clients)
{
	my $pid = open(my $pipe, '-|') // die "fork: $!";
	if ($pid == 0)
	{
		print serve($client), "\n";
		exit;
	}
	push @pipes, $pipe;
}
my $requests = 0;
for my $pipe (@pipes)
{
	$requests += <$pipe> // die 'a client has failed';
	close $pipe or die 'a client has failed';
}
printf "%.1f\n", $requests / $seconds;
