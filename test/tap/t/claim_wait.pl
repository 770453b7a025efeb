# idem_wait sleeps without a snapshot and without locks, and is woken by the end
# of the transaction that writes the key, with and without the library being
# preloaded.  If this fails, VACUUM or DDL waits for those who wait for an
# answer, or they get it late.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;
use Time::HiRes qw(time);

my $node = start_server('claim_wait', conf => 'max_prepared_transactions = 5');
my $waiter = session($node);
my $pid = $waiter->query_safe('SELECT pg_backend_pid()');

sub start_waiting
{
	$waiter->query_until(qr/waits/, "\\echo waits\nCALL idem_wait('k', timeout => '60 s');\n\\echo wait_ends\n");
	wait_until($node, "SELECT wait_event_type = 'Extension' AND backend_xmin IS NULL AND state = 'active'"
		  . " AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'relation')"
		  . " FROM pg_stat_activity a WHERE a.pid = $pid", 'a waiter sleeps without snapshot or relation lock');
	return;
}

# What it gets, if it takes less than so many seconds.
sub answer_within
{
	my ($seconds) = @_;
	my $start = time;
	my $answer = $waiter->query_until(qr/wait_ends\n/, '') =~ s/\nwait_ends\n//r;
	my $took = time - $start;
	return $took < $seconds ? $answer : "$answer after $took s";
}

my $token = sql(q(SELECT token FROM idem_claim('k', lease => '1 h')));
start_waiting();
sql(qq(SELECT idem_complete('other', token) FROM idem_claim('other', lease => '1 s')));
sql(qq(SELECT idem_complete('k', $token, '{"a": 1}')));
is(answer_within(3), 'completed|1|{"a": 1}|', 'the commit of the owner wakes it');

sql(q(SELECT idem_forget('k')));
my $owner = session($node);
$owner->query_safe(q(BEGIN; SELECT idem_claim('k')));
start_waiting();
finish($owner, 'ROLLBACK');
is(answer_within(3), '|||', 'so does a rollback');

sql(q(BEGIN; SELECT idem_claim('k'); PREPARE TRANSACTION 'one'));
start_waiting();
sql(q(COMMIT PREPARED 'one'));
is(answer_within(20), 'completed|1||', 'it notices COMMIT PREPARED after a while');

sql(q(SELECT idem_forget('k'); SELECT idem_claim('k', lease => '1 h')));
start_waiting();
sql('DROP EXTENSION idempotency');
answer_within(20);
like($waiter->{stderr}, qr/is not installed/, 'it does not block DROP EXTENSION, and notices it');
eval { $waiter->quit };

# --- without preloading

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
sql('CREATE EXTENSION idempotency');
$token = sql(q(SELECT token FROM idem_claim('k', lease => '1 h')));
$waiter = session($node);
$pid = $waiter->query_safe('SELECT pg_backend_pid()');
start_waiting();
sql(qq(SELECT idem_complete('k', $token, '"b"')));
is(answer_within(3), 'completed|1|"b"|', 'without preloading it looks often enough');
$waiter->quit;

done_testing();
