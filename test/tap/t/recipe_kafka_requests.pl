# A Kafka consumer takes request ids from headers: messages that are published
# twice, or come again after a crash, have one effect each, and those without a
# usable id, or that cannot succeed, are dead letters with a reason.  If this
# fails, a deposit is booked twice or never, or a bad message stops a partition.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Broker;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;

my $broker = Broker->start;
my $node = start_server('bank', internal_path => 0);

prepare_recipe($node, 'rabbitmq.sql');
sql("INSERT INTO accounts VALUES ('ann'), ('bob')");

sub consumer
{
	return $broker->start_consumer('kafka_requests.js', as_shop($node), @_);
}

# Publishes a message with some headers.
sub publish
{
	my ($value, @headers) = @_;
	IPC::Run::run([ qw(kcat -P -q -b), $broker->brokers, qw(-t deposits -p 0), map { ('-H', $_) } @headers ], '<', \"$value\n")
	  or die 'the message was not published';
	return;
}

sub deposit
{
	my ($id, $account, $amount) = @_;
	return publish(sprintf('{"account": "%s", "amount": %s}', $account // 'ann', $amount // 5), "idempotency-key=$id");
}

# The dead letters so far: the reason of each.
sub dead
{
	my ($stdout) = run_command([ qw(kcat -C -q -e -o beginning -b), $broker->brokers, '-t', 'deposits.dead', '-f', '%h\n' ]);
	return map { /error=(.*)/ ? $1 : () } split /\n/, $stdout;
}

sub effects
{
	my ($like) = @_;
	return sql("SELECT count(*) || ' of ' || count(DISTINCT message) FROM deposits WHERE message LIKE '$like'");
}

# --- published once and twice

deposit('plain');
my $consumer = consumer();
is($consumer->line('plain'), 'plain claimed', 'a message is done');
deposit('plain');
is($consumer->line('plain'), 'plain completed', 'published again, it is recognised');
is(effects('plain'), '1 of 1', 'and has one effect');

# --- dead letters

publish('{"account": "ann", "amount": 1}');
is($consumer->line('-'), '- dead (no usable header idempotency-key)', 'a message without an id is dead');
publish('{"account": "ann", "amount": 1}', 'idempotency-key=one', 'idempotency-key=two');
is($consumer->line('-'), '- dead (no usable header idempotency-key)', 'and one with two ids');
publish('{"account": "ann", "amount": 1}', 'idempotency-key=' . 'x' x 256);
is($consumer->line('-'), '- dead (no usable header idempotency-key)', 'and one with a long id');
deposit('plain', 'bob');
is($consumer->line('plain'), 'plain dead (the id was used for another message)', 'and another one with an id that was used');
deposit('nobody', 'nobody');
like($consumer->line('nobody'), qr/^nobody dead \(insert or update on table "deposits" violates/, 'and one that cannot succeed');
deposit('nobody', 'nobody');
like($consumer->line('nobody'), qr/^nobody dead \(insert or update/, 'whenever it comes');
publish('no JSON', 'idempotency-key=bad');
like($consumer->line('bad'), qr/^bad dead \(.*JSON/, 'and one that is no JSON');
publish('null', 'idempotency-key=null');
like($consumer->line('null'), qr/^null dead/, 'or the wrong JSON');
is(scalar(dead()), 8, 'all of them are in the topic of dead letters');
deposit('after', 'bob');
is($consumer->line('after'), 'after claimed', 'messages behind them are not held up');
is(sql('SELECT sum(balance) FROM accounts'), '10', 'two have had an effect');

# --- a crash before the commit

my $session = session($node);
$session->query_safe("BEGIN; SELECT FROM accounts WHERE name = 'ann' FOR NO KEY UPDATE");
deposit('before');
wait_for_lock($node, 'UPDATE accounts', 'a message is half done');
$consumer->crash;
$session->query_safe('COMMIT');
$consumer = consumer();
is($consumer->line('before'), 'before claimed', 'the next consumer does it');
is(effects('before'), '1 of 1', 'once');
$consumer->stop;

# --- a crash after the commit, before the offset is committed

$consumer = consumer(PRELOAD => 'never_commit.js');
deposit('committed');
is($consumer->line('not committed:'), 'not committed: deposits', 'a message is committed');
$consumer->crash;
$consumer = consumer();
is($consumer->line('committed'), 'committed completed', 'after a crash it comes again, and is recognised');
is(effects('committed'), '1 of 1', 'its effect is there once');

# --- the database connection breaks

$session->query_safe("BEGIN; SELECT FROM accounts WHERE name = 'ann' FOR NO KEY UPDATE");
deposit('broken');
wait_for_lock($node, 'UPDATE accounts', 'a message is half done');
sql(q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'));
$session->query_safe('COMMIT');
is($consumer->line('broken'), 'broken claimed', 'it is delivered again, and done');
is(effects('%'), '5 of 5', 'each message has one effect');
is(sql('SELECT bool_and(balance = (SELECT sum(amount) FROM deposits WHERE account = name)) FROM accounts'),
	't', 'the balances are those of the deposits');

$consumer->stop;
$session->quit;
$broker->stop;
done_testing();
