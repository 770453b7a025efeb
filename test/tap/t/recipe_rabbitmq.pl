# "From a unique message id in a RabbitMQ consumer", with a real RabbitMQ:
# messages that are published twice, delivered again after a nack, a lost
# connection or a crash, or handled by two consumers at once have one effect
# each, and all are acknowledged.  If this fails, a deposit is booked twice or
# never.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Program;
use Rabbit;
use Server;
use Test::More;

use constant { PREFETCH => 10 };    # as in rabbitmq_consumer.js

my $rabbit = Rabbit->start;
my $node = start_server('bank', internal_path => 0);
my %env = (as_shop($node), AMQP_URL => $rabbit->url);

prepare_recipe($node, 'rabbitmq.sql');
sql("INSERT INTO accounts VALUES ('ann'), ('bob')");
my $producer = start_recipe('rabbitmq_producer.js', %env);

sub consumer
{
	my ($file, %more) = @_;
	return start_recipe($file, %env, %more)->wait_for_start('consuming');
}

# Publishes messages, and waits until RabbitMQ has them.
sub publish
{
	my ($account, @ids) = @_;
	$producer->say(map { qq({"id": "$_", "account": "$account", "amount": 5}) } @ids);
	$producer->line($_) eq "$_ confirmed" or die "$_ is not confirmed" for @ids;
	return;
}

# RabbitMQ moves them after the consumer has rejected them.
sub are_dead
{
	my ($count, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $messages;
	for (1 .. 30)
	{
		$messages = $rabbit->messages('deposits.dead');
		last if $messages eq "$count 0";
	}
	return is($messages, "$count 0", $what);
}

sub effects
{
	my ($like) = @_;
	return sql("SELECT count(*) || ' of ' || count(DISTINCT message) FROM deposits WHERE message LIKE '$like'");
}

my @never_ack = ('--require', "$FindBin::RealBin/../programs/never_ack.js");
my $session = session($node);
my $lock = "BEGIN; SELECT FROM accounts WHERE name = 'ann' FOR NO KEY UPDATE";

# --- without faults, and a producer that publishes twice

my $consumer = consumer('rabbitmq_consumer.js');
publish('ann', 'plain');
is($consumer->line('plain'), 'plain claimed', 'a message is done');
is(effects('plain'), '1 of 1', 'and has its effect');
publish('ann', 'plain');
is($consumer->line('plain'), 'plain completed', 'published again, it is recognised');
is(effects('plain'), '1 of 1', 'and has no further effect');

# --- an error during the work: rolled back, returned, delivered again

$session->query_safe($lock);
publish('ann', 'nack');
wait_for_lock($node, 'UPDATE accounts', 'a message is half done');
sql(q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	WHERE usename = 'shop' AND wait_event_type = 'Lock'));
is($consumer->line('nack'), 'nack again (57P01)', 'the database connection breaks: the message goes back');
wait_for_lock($node, 'UPDATE accounts', 'and comes again');
is(effects('nack'), '0 of 0', 'without an effect so far');
$session->query_safe('COMMIT');
is($consumer->line('nack'), 'nack claimed (redelivered)', 'its id is not in the way');
is(effects('nack'), '1 of 1', 'and it is done once');

# --- bad data is not delivered again and again

publish('nobody', 'bad', 'bad');
is(join(', ', map { $consumer->line('bad') } 1 .. 2), 'bad dead (23503), bad failed',
	'a message that cannot succeed is dead, and its copy is acknowledged');
is(sql("SELECT response ->> 'error' FROM idem_key WHERE key = 'bad'"),
	'insert or update on table "deposits" violates foreign key constraint "deposits_account_fkey"',
	'why is remembered');
publish('ann', 'after');
is($consumer->line('after'), 'after claimed', 'others are not held up');

# --- a concurrent duplicate

my $second = consumer('rabbitmq_consumer.js');
$session->query_safe($lock);
publish('ann', 'both', 'both');
wait_for_lock($node, 'UPDATE accounts', 'one consumer is at work on a message');
wait_for_lock($node, 'idem_claim', 'the other one, with its copy, waits in idem_claim');
is(sql("SELECT outcome FROM idem_claim('both', 'deposits', wait => false)"), 'in_progress',
	'who does not want to wait is told in_progress');
$session->query_safe('COMMIT');
is(join(', ', sort map { $_->line('both') } $consumer, $second), 'both claimed, both completed',
	'then one has done it, and the other learns that');
is(effects('both'), '1 of 1', 'with one effect');
$_->stop for $consumer, $second;

# --- RabbitMQ closes the connection: one message is not acknowledged yet,
# another is being handled

$consumer = consumer('rabbitmq_consumer.js', NODE_ARGUMENTS => \@never_ack);
publish('ann', 'cut-done');
is($consumer->line('not acknowledged:'), 'not acknowledged: cut-done', 'a message is committed');
$session->query_safe($lock);
publish('ann', 'cut-half');
wait_for_lock($node, 'UPDATE accounts', 'another is half done');
$rabbit->control('close_all_connections', 'test');
ok($consumer->wait_for_end, 'a consumer that has lost its connection ends');
$session->query_safe('COMMIT');
$producer = start_recipe('rabbitmq_producer.js', %env);
$consumer = consumer('rabbitmq_consumer.js');
is($consumer->line('cut-done'), 'cut-done completed (redelivered)',
	'what was committed comes again, and is acknowledged only');
is($consumer->line('cut-half'), 'cut-half claimed (redelivered)',
	'what was half done is done by the next consumer');
is(effects('cut-%'), '2 of 2', 'each has one effect');
$consumer->stop;

# --- a crash before the commit

$consumer = consumer('rabbitmq_consumer.js');
$session->query_safe($lock);
publish('ann', 'before');
wait_for_lock($node, 'UPDATE accounts', 'a message is half done');
$consumer->crash;
$consumer = consumer('rabbitmq_consumer.js');
wait_for_lock($node, 'idem_claim', 'after a crash the next consumer waits for the transaction of the dead one');
is(effects('before'), '0 of 0', 'without an effect so far');
$session->query_safe('COMMIT');
is($consumer->line('before'), 'before claimed (redelivered)', 'and does it once that is rolled back');
is(effects('before'), '1 of 1', 'once');
$consumer->stop;

# --- a crash after the commit and before the acknowledgement

$consumer = consumer('rabbitmq_consumer.js', NODE_ARGUMENTS => \@never_ack);
publish('ann', 'committed');
is($consumer->line('not acknowledged:'), 'not acknowledged: committed', 'a message is committed');
$consumer->crash;
$consumer = consumer('rabbitmq_consumer.js');
is($consumer->line('committed'), 'committed completed (redelivered)',
	'after a crash it comes again, and is acknowledged only');
is(effects('committed'), '1 of 1', 'its effect is there once');

# --- the same with bad data: it was given up, but not rejected yet

$consumer->stop;
$consumer = consumer('rabbitmq_consumer.js', NODE_ARGUMENTS => \@never_ack);
publish('nobody', 'given-up');
is($consumer->line('not rejected:'), 'not rejected: given-up', 'a bad message is given up');
$consumer->crash;
$consumer = consumer('rabbitmq_consumer.js');
is($consumer->line('given-up'), 'given-up dead (redelivered)', 'after a crash it still becomes a dead one');

are_dead(2, 'the two bad messages so far are dead');

# --- the broker is killed: one message is not acknowledged, another is being
# handled, and others wait

$consumer->stop;
my @restarting = (RESTART => 1);
$consumer = consumer('rabbitmq_consumer.js', @restarting, NODE_ARGUMENTS => \@never_ack);
publish('ann', 'down-done');
is($consumer->line('not acknowledged:'), 'not acknowledged: down-done', 'a message is committed');
$consumer->stop;
$consumer = consumer('rabbitmq_consumer.js', @restarting);
is($consumer->line('down-done'), 'down-done completed (redelivered)', 'and comes again');
$session->query_safe($lock);
publish('ann', 'down-half');
wait_for_lock($node, 'UPDATE accounts', 'another is half done');
publish('ann', map { "down-$_" } 1 .. 2 * PREFETCH);
$rabbit->kill;
$session->query_safe('COMMIT');
$rabbit->start_again;
$consumer->line('consuming') or die 'the consumer does not come back';
$rabbit->wait_until_empty('deposits', 'the consumer is back, and acknowledges all');
# RabbitMQ moves messages to the other queue without confirming that to itself:
# a broker that is killed may lose dead ones.
my ($dead) = $rabbit->messages('deposits.dead') =~ /^(\d+) 0$/;
is(effects('down-%'), 2 * PREFETCH + 2 . ' of ' . (2 * PREFETCH + 2), 'confirmed messages survive, with one effect each');
$producer->stop;
$producer = start_recipe('rabbitmq_producer.js', %env);
publish('ann', 'up');
is($consumer->line('up'), 'up claimed', 'new ones come as before');

# --- two consumers, and three copies of each message

$second = consumer('rabbitmq_consumer.js');
$session->query_safe($lock =~ s/ann/bob/r);
publish('bob', map { ("many-$_") x 3 } 1 .. 100);
wait_until($node, 'SELECT count(*) = ' . 2 * PREFETCH . q( FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'),
	'both consumers have as many as they take at once');
$session->query_safe('COMMIT');
$rabbit->wait_until_empty('deposits', 'two consumers acknowledge three copies of 100 messages');
is(effects('many-%'), '100 of 100', 'each has one effect');
my @outcomes = map { [ grep { /^many-/ } $_->lines ] } $consumer, $second;
is(scalar(grep { / claimed/ } map { @$_ } @outcomes), 100, 'one copy of each was claimed');
is(scalar(grep { / completed/ } map { @$_ } @outcomes), 200, 'the others were completed');
cmp_ok(scalar(@$_), '>=', PREFETCH, 'both consumers have had their share') for @outcomes;
$_->stop for $consumer, $second;

# --- batches

publish('bob', map { ("batch-$_") x 2 } 1 .. 100);
$consumer = consumer('rabbitmq_batch.js', NODE_ARGUMENTS => \@never_ack);
like($consumer->line('not acknowledged:'), qr/batch-\d+/, 'a batch is committed');
$session->query_safe($lock);
$consumer->crash;
publish('ann', 'batch-held');
$consumer = consumer('rabbitmq_batch.js', PREFETCH => 500);
wait_for_lock($node, 'UPDATE accounts', 'after a crash another batch is half done');
$consumer->crash;
$session->query_safe('COMMIT');
publish('nobody', 'batch-bad');
my @batches = map { consumer('rabbitmq_batch.js', PREFETCH => 20) } 1 .. 2;
publish('bob', map { ("batch-$_") x 3 } 51 .. 150);
$rabbit->wait_until_empty('deposits', 'the next two consumers acknowledge all');
is(effects('batch-%'), '151 of 151', 'each message has one effect');
my @lines = map { $_->lines } @batches;
cmp_ok(scalar(grep { /^batch of (\d+)/ && $1 > 1 } @lines), '>', 5, 'many of them in one call and one commit');
is(scalar(grep { /^batch-bad .*violates/ } @lines), 1, 'a bad message in a batch does not keep the others');
are_dead($dead + 1, 'and is dead');

is(sql('SELECT bool_and(balance = (SELECT sum(amount) FROM deposits WHERE account = name)) FROM accounts'),
	't', 'the balances are those of the deposits');
is(sql(q(SELECT count(*) FROM deposits LEFT JOIN idem_key ON key = message AND scope = 'deposits' WHERE key IS NULL)),
	'0', 'and every message is remembered');

$session->quit;
done_testing();
