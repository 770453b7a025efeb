# service.pl CONTENDER CLIENTS SECONDS DIES_AFTER ANSWER: requests to a service
# that makes a row for each key once, as such services run.
#
# block: claim, row and answer in one transaction, a statement for each.
# statement: the same as one statement.
# redis: the key in Redis with a lease, the row in the database, and the answer
#	in Redis.
#
# One request in DIES_AFTER dies after the commit of its row, before it can do
# anything else. When its lease is over, it is tried again, as a queue or a
# client does. Each client is a process. Prints the requests in a second,
# without those that are tried again. REDIS_SOCKET and the PG* variables say
# where.

use strict;
use warnings FATAL => 'all';

use DBI;
use Redis;
use Time::HiRes qw(time sleep);

use constant LEASE_MS => 1000;
use constant TTL_S => 86400;

my ($contender, $clients, $seconds, $dies_after, $answer) = @ARGV;
my ($db, $redis, %statement);

sub prepare_statements
{
	$db = DBI->connect('dbi:Pg:', '', '', { RaiseError => 1, AutoCommit => 1 });
	$redis = Redis->new(sock => $ENV{REDIS_SOCKET}) if $contender eq 'redis';
	$statement{claim} = $db->prepare('SELECT outcome, token, response FROM idem_claim(?)');
	$statement{row} = $db->prepare('INSERT INTO peer_order (contender, key, total) VALUES (?, ?, 17.50)');
	$statement{complete} = $db->prepare('SELECT idem_complete(?, ?, ?)');
	$statement{all} = $db->prepare(q(
		WITH claim AS MATERIALIZED (SELECT outcome, token, response FROM idem_claim($1)),
			placed AS (INSERT INTO peer_order (contender, key, total)
				SELECT $2, $1, 17.50 FROM claim WHERE outcome = 'claimed' RETURNING id)
		SELECT CASE WHEN outcome = 'claimed' THEN idem_complete($1, token, $3) END, response
		FROM claim LEFT JOIN placed ON true));
}

# The row is made if the key is new.
my %serve = (
	block => sub {
		my ($key) = @_;

		$db->begin_work;
		$statement{claim}->execute($key);
		my ($outcome, $token) = @{ $statement{claim}->fetchall_arrayref->[0] };
		if ($outcome eq 'claimed')
		{
			$statement{row}->execute($contender, $key);
			$statement{complete}->execute($key, $token, $answer);
			$statement{complete}->fetchall_arrayref;
		}
		$db->commit;
	},
	statement => sub {
		my ($key) = @_;

		$statement{all}->execute($key, $contender, $answer);
		$statement{all}->fetchall_arrayref;
	},
	redis => sub {
		my ($key, $dies) = @_;

		return if !$redis->set("order:$key", 'in progress', 'NX', 'PX', LEASE_MS);
		$statement{row}->execute($contender, $key);
		$redis->set("order:$key", $answer, 'EX', TTL_S) unless $dies;
	});

# All clients begin at the same time, when the last one is connected: until then
# the parent keeps the writing end of the pipe $begin.
sub run_client
{
	my ($client, $begin) = @_;
	my ($requests, $until, @dead) = (0);

	prepare_statements();
	srand($client * 1e6 + $$);
	print "connected\n";
	readline $begin;
	$until = time + $seconds;
	while (time < $until)
	{
		my $key = sprintf('%06d-%012d-%04d-4b1d-9c1e-8a7f7a', rand(1e6), rand(1e12), $client);
		my $dies = rand($dies_after) < 1;

		$serve{$contender}->($key, $dies);
		$requests++;
		push @dead, $key if $dies;
	}
	sleep(2 * LEASE_MS / 1000);
	$serve{$contender}->($_, 0) foreach @dead;
	$db->disconnect;
	return $requests;
}

my @pipes;
pipe(my $begin, my $hold) or die "pipe: $!";
for my $client (1 .. $clients)
{
	my $pid = open(my $pipe, '-|') // die "fork: $!";
	if ($pid == 0)
	{
		close $hold;
		$| = 1;
		print run_client($client, $begin), "\n";
		exit;
	}
	push @pipes, $pipe;
}
<$_> // die 'a client has failed' foreach @pipes;
close $hold;
my $requests = 0;
for my $pipe (@pipes)
{
	$requests += <$pipe> // die 'a client has failed';
	close $pipe or die 'a client has failed';
}
printf "%.1f\n", $requests / $seconds;
