# A bad row of one subscription, or a constraint on its rows, stops its
# deliveries and no others.  outbox_subscriptions shows the error, the log has
# it once, and when the cause is removed the relay goes on by itself and sends
# nothing twice.  If this fails, one bad row stops all subscriptions of the
# database, or the same events are sent again and again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

# Far less time than restarting the relay for each event would take.
use constant { WITNESSES => 10, WITNESSES_S => 8 };

my $receiver = Receiver->start;
my $node = start_server('stuck');
my $sent = 0;

sub enqueue
{
	my ($topic, $n) = @_;
	sql(qq(SELECT outbox_enqueue('$topic', '{"n": $n}')));
	return;
}

subscribe($node, $receiver, '/ok/witness', topics => q('{witness}'));
subscribe($node, $receiver, '/ok/shop', topics => q('{shop}'));
my $shop = sql(q(SELECT id FROM outbox_subscription WHERE name = 'shop'));
enqueue($_, 0) for qw(witness shop);
$receiver->wait_for($_, events => 1) for qw(witness shop);
my $relay = worker_pid($node, 'relay');

# Are events of other subscriptions delivered as quickly as otherwise?
sub others_are_served
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time();

	for (1 .. WITNESSES)
	{
		enqueue('witness', ++$sent);
		$receiver->wait_for('witness', events => $sent + 1, WITNESSES_S) or last;
	}
	cmp_ok(time() - $start, '<=', WITNESSES_S, "$when: others get their events at once");
	is(worker_pid($node, 'relay'), $relay, "$when: from the same relay");
	return;
}

sub is_stuck
{
	my ($name, $reason) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return wait_until($node, qq(SELECT state = 'stuck' AND reason = \$\$$reason\$\$
		FROM outbox_subscriptions WHERE name = '$name'), "it says that $name is stuck: $reason");
}

# How many transactions are made in so many seconds.
sub transactions_in
{
	my ($seconds) = @_;
	my $commits = q(SELECT sum(pg_stat_get_db_xact_commit(oid)) FROM pg_database WHERE datname = 'postgres');
	my $before = sql($commits);

	sql("SELECT pg_sleep($seconds)");
	return sql($commits) - $before;
}

sub is_served
{
	my ($name, $when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return wait_until($node, qq(SELECT state = 'active' AND reason IS NULL AND lag_events = 0
		FROM outbox_subscriptions, outbox_wake() WHERE name = '$name'), "$when: $name is served again");
}

# --- outcomes that cannot be recorded

sql('CREATE SEQUENCE tries');
sql("ALTER TABLE outbox_partition ADD CONSTRAINT bad CHECK (subscription <> $shop OR nextval('tries') < 0) NOT VALID");
my $log_start = -s $node->logfile;
enqueue('shop', $_) for 1 .. 3;
$receiver->wait_for('shop', events => 2);
is_stuck('shop', 'new row for relation "outbox_partition" violates check constraint "bad"');
others_are_served('a constraint');
wait_until($node, 'SELECT last_value >= 4 FROM tries', 'it is tried again');
is(() = slurp_file($node->logfile, $log_start) =~ /subscription "shop" is stuck/g, 1, 'and reported once');
sql('ALTER TABLE outbox_partition DROP CONSTRAINT bad');
is_served('shop', 'without the constraint');
$receiver->wait_for('shop', events => 4);
is($receiver->numbers('shop'), '0 1 2 3', 'each event was sent once');
wait_until($node, q(SELECT delivered = 4 FROM outbox_subscriptions WHERE name = 'shop'), 'and is counted');
$node->wait_for_log(qr/subscription "shop" is not stuck any more/, $log_start);

# Two subscriptions are settled at once, since their answers come while the
# relay waits for a table: the one that cannot be recorded is found.
subscribe($node, $receiver, "/hold/$_", topics => "'{pair}'") for qw(first second);
my $second = sql(q(SELECT id FROM outbox_subscription WHERE name = 'second'));
enqueue('pair', 1);
$receiver->wait_for($_, requests => 1) for qw(first second);
sql("ALTER TABLE outbox_partition ADD CONSTRAINT bad CHECK (subscription <> $second) NOT VALID");
my $session = session($node);
$session->query_safe('BEGIN; LOCK TABLE outbox_partition IN SHARE MODE');
enqueue('witness', ++$sent);
wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'outbox_partition'::regclass AND NOT granted AND pid = $relay",
	'the relay waits');
$receiver->release($_) for qw(first second);
$session->query_safe('COMMIT');
is_stuck('second', 'new row for relation "outbox_partition" violates check constraint "bad"');
is_served('first', 'while the other is stuck');
unlike(slurp_file($node->logfile), qr/subscription "first" is stuck/, 'nor is it blamed');
sql('ALTER TABLE outbox_partition DROP CONSTRAINT bad');
sql(q(SELECT outbox_unsubscribe('first'), outbox_unsubscribe('second')));

# At the commit, where the error does not tell whose row it was.
subscribe($node, $receiver, '/fail/dead', topics => q('{dead}'), retry_schedule => q('{0 s}'), partitions => 2);
sql('CREATE TABLE nobody (id bigint PRIMARY KEY);
	ALTER TABLE outbox_delivery ADD CONSTRAINT bad FOREIGN KEY (subscription) REFERENCES nobody DEFERRABLE INITIALLY DEFERRED');
enqueue('dead', $_) for 1 .. 8;
is_stuck('dead', 'insert or update on table "outbox_delivery" violates foreign key constraint "bad"');
others_are_served('a constraint that is deferred');
sql('ALTER TABLE outbox_delivery DROP CONSTRAINT bad');
sql(q(SELECT outbox_resume('dead')));
wait_until($node, q(SELECT state = 'active' AND dead = 8 FROM outbox_subscriptions WHERE name = 'dead'),
	'without it, all is written down');
$receiver->wait_for('dead', events => 8);
is(scalar($receiver->requests('dead')), 8, 'and nothing was sent again');
sql(q(SELECT outbox_unsubscribe('dead')));

# Also if the partition has nothing to send.
subscribe($node, $receiver, '/ok/twins', topics => q('{twins}'), partitions => 2);
my $twins = sql(q(SELECT id FROM outbox_subscription WHERE name = 'twins'));
sql("BEGIN; UPDATE outbox_partition SET position = position - number, head = NULL WHERE subscription = $twins;
	ALTER TABLE outbox_partition ADD CONSTRAINT bad EXCLUDE USING btree (position WITH =) WHERE (subscription = $twins) DEFERRABLE INITIALLY DEFERRED;
	COMMIT; SELECT outbox_wake()");
is_stuck('twins', 'conflicting key value violates exclusion constraint "bad"');
others_are_served('a constraint that is deferred, of a partition that only moves on');
sql('ALTER TABLE outbox_partition DROP CONSTRAINT bad');
is_served('twins', 'without it');
sql(q(SELECT outbox_unsubscribe('twins')));

# --- rows that another transaction has locked

subscribe($node, $receiver, '/fail/busy', topics => q('{busy}'), retry_schedule => q('{0 s,1 s,1 s,1 s}'));
enqueue('busy', 1);
wait_until($node, q(SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'busy'), 'an event waits');
$session->query_safe('BEGIN; SELECT FROM outbox_delivery FOR UPDATE');
is_stuck('busy', 'another transaction has locked its rows');
others_are_served('a row that is locked');
$session->query_safe('COMMIT');
wait_until($node, q(SELECT dead = 1 AND state = 'active' FROM outbox_subscriptions WHERE name = 'busy'),
	'when it is not, the subscription goes on');
is(scalar($receiver->requests('busy')), 4, 'and sends as often as its schedule says');
is(() = slurp_file($node->logfile, $log_start) =~ /subscription "busy" is stuck/g, 1, 'which was reported once');
# A lock on the table makes all wait, and none is stuck.
enqueue('busy', 2);
wait_until($node, q(SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'busy'), 'an event waits');
for my $table (qw(outbox_delivery outbox_attempt outbox_partition outbox_subscription))
{
	$session->query_safe("BEGIN; LOCK TABLE $table IN SHARE MODE");
	enqueue('witness', ++$sent);
	wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE relation = '$table'::regclass AND NOT granted AND pid = $relay",
		"the relay waits for $table");
	sql('SELECT pg_sleep(0.5)');
	is(sql(q(SELECT count(*) FROM outbox_subscriptions WHERE state = 'stuck')), 0, 'and says that none is stuck');
	$session->query_safe('COMMIT');
	$receiver->wait_for('witness', events => $sent + 1);
}
$session->quit;
wait_until($node, q(SELECT dead = 2 AND state = 'active' FROM outbox_subscriptions WHERE name = 'busy'), 'then goes on');
sql(q(SELECT outbox_unsubscribe('busy')));

# --- rows that cannot be read

# The owner can drop the constraints that exclude such rows.
sql(q(DO $$
DECLARE c record;
BEGIN
	FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint
		WHERE conrelid::regclass::text LIKE 'outbox%' AND contype = 'c'
	LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname); END LOOP;
	FOR c IN SELECT attrelid::regclass AS t, attname AS conname FROM pg_attribute
		WHERE attrelid::regclass::text LIKE 'outbox%' AND attnotnull AND attnum > 0 AND attrelid::regclass::text !~ '_(idx|key|pkey|seq)$'
			AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))
			AND attidentity = ''
	LOOP EXECUTE format('ALTER TABLE %s ALTER %I DROP NOT NULL', c.t, c.conname); END LOOP;
END $$));

my $wrong = 'column "%s" has no valid value';
my $partitions = 'outbox_partition does not have a row for each of its partitions';
for my $bad (
	[ subscription => q(url = 'http://' || repeat('a', 10000000)), $wrong ],
	[ subscription => 'topics = NULL', $wrong ],
	[ subscription => q(topics = '{}'), $wrong ],
	[ subscription => 'secret = NULL', $wrong ],
	[ subscription => q(headers = '[1]'), $wrong ],
	[ subscription => q(format = 'xml'), $wrong ],
	[ subscription => 'ordered = NULL', $wrong ],
	[ subscription => 'max_in_flight = -1', $wrong ],
	[ subscription => 'max_in_flight = 2000000000', $wrong ],
	[ subscription => q(timeout = '-1 s'), $wrong ],
	[ subscription => q(timeout = '170000000 years'), $wrong ],
	[ subscription => 'retry_schedule = NULL', $wrong ],
	[ subscription => q(retry_schedule = '{}'), $wrong ],
	[ subscription => q(retry_schedule = '{0 s,NULL}'), $wrong ],
	[ subscription => q(retry_schedule = '{0 s,-170000000 years}'), $wrong ],
	[ subscription => 'partitions = 0', $wrong ],
	[ subscription => 'partitions = 3', $partitions ],
	[ partition => 'number = 64', $wrong ],
	[ partition => 'number = -1', $wrong ],
	[ partition => 'position = NULL', $wrong ],
	[ partition => 'position = -9223372036854775808', $wrong ],
	[ partition => 'position = 9223372036854775807', 'its position is beyond the end of the log' ],
	[ partition => q(stragglers = '{NULL}', straggler_froms = '{1}'), $wrong ],
	[ partition => q(stragglers = '{7}'), $wrong ],
	[ partition => 'stragglers = NULL', $wrong ])
{
	my ($table, $change, $reason) = @$bad;
	my ($column) = $change =~ /^(\w+)/;
	my $id = $table eq 'partition' ? 'subscription' : 'id';

	sql("DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT * FROM outbox_$table WHERE $id = $shop");
	sql("UPDATE outbox_$table SET $change" . ($table eq 'partition' ? ', head = NULL' : '') . " WHERE $id = $shop;"
		. ' SELECT outbox_wake()');
	is_stuck('shop', $reason =~ s/%s/$column/r);
	enqueue('witness', ++$sent);
	$receiver->wait_for('witness', events => $sent + 1);
	sql("UPDATE outbox_$table o SET $column = k.$column"
		. ($table eq 'partition' ? ', straggler_froms = k.straggler_froms' : '') . " FROM kept k WHERE o.$id = k.$id");
	sql(q(SELECT outbox_resume('shop')));
	is_served('shop', "once $table has no more " . substr($change, 0, 40));
}
sql("DELETE FROM outbox_partition WHERE subscription = $shop; SELECT outbox_wake()");
is_stuck('shop', 'outbox_partition has no row of it');
sql("INSERT INTO outbox_partition SELECT * FROM kept");
is_served('shop', 'once it has one again');
others_are_served('after all that');
enqueue('shop', 4);
$receiver->wait_for('shop', events => 5);
is($receiver->distinct_numbers('shop'), '0 1 2 3 4', 'and nothing is lost');

# --- a subscription that is paused while a request is in flight

subscribe($node, $receiver, '/hang/waits', topics => q('{waits}'), timeout => q('1 min'));
enqueue('waits', 1);
$receiver->wait_for('waits', requests => 1);
sql(q(UPDATE outbox_subscription SET headers = '[1]' WHERE name = 'waits'; SELECT outbox_wake()));
is_stuck('waits', sprintf($wrong, 'headers'));
cmp_ok(transactions_in(4), '<', 200, 'the relay does not make one pass after another meanwhile');
sql(q(SELECT outbox_pause('waits')));
is(sql(q(SELECT state, reason IS NULL FROM outbox_subscriptions WHERE name = 'waits')), 'paused|t', 'is no longer called stuck');
sql('SELECT pg_sleep(1.5)');
cmp_ok(transactions_in(1), '<', 200, 'and the relay does not try again and again');
sql(q(SELECT outbox_unsubscribe('waits')));

# --- numbers of attempts, and other values of deferred deliveries

subscribe($node, $receiver, '/switch/retried', topics => q('{retried}'), retry_schedule => q('{0 s,1 h,1 h}'));
$receiver->switch('retried', 'fail');
my $n = 0;
for my $bad ('attempts = -1', 'attempts = -2147483648', 'attempts = 2147483647', 'attempts = NULL',
	'key = NULL', q(due_at = '-infinity'), q(due_at = '2000-01-01 00:00+00'))
{
	my $dead = $bad =~ /= 2147483647/ ? 1 : 0;

	sql(qq(SELECT outbox_enqueue('retried', '{"n": @{[ ++$n ]}}', key => 'k$n')));
	wait_until($node, q(SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'retried'), 'an event waits');
	sql("UPDATE outbox_delivery SET due_at = clock_timestamp(); UPDATE outbox_delivery SET $bad; SELECT outbox_wake()");
	$receiver->wait_for('retried', requests => 2 * $n);
	wait_until($node, qq(SELECT state = 'active' AND waiting = 1 - $dead AND dead = $dead AND in_flight = 0
		FROM outbox_subscriptions WHERE name = 'retried'), "$bad: it is tried, and goes on as it should");
	sql('DELETE FROM outbox_delivery');
}
is(worker_pid($node, 'relay'), $relay, 'by the same relay');

# --- a relay that starts finds one partition that cannot be served

subscribe($node, $receiver, '/ok/halved', topics => q('{halved}'), partitions => 2);
my $half = q(FROM outbox_subscription s WHERE s.id = p.subscription AND s.name = 'halved' AND p.number = 0);
sql("CREATE TABLE reached AS SELECT p.position FROM outbox_partition p, outbox_subscription s WHERE s.id = p.subscription AND s.name = 'halved' LIMIT 1");
sql("UPDATE outbox_partition p SET position = 1000000000, head = NULL $half");
terminate_worker($node, 'relay');
is_stuck('halved', 'its position is beyond the end of the log');
enqueue('halved', $_) for 1 .. 4;
$receiver->wait_for('halved', events => 2);
sql("UPDATE outbox_partition p SET position = (SELECT position FROM reached) $half");
sql(q(SELECT outbox_resume('halved')));
is_served('halved', 'once its position is right');
$receiver->wait_for('halved', events => 4);
is($receiver->sorted_numbers('halved'), '1 2 3 4', 'the other one was served meanwhile');
$relay = worker_pid($node, 'relay');

# --- events that cannot be sent

subscribe($node, $receiver, '/ok/broken', topics => q('{broken}'));
for my $bad ([ headers => q('[1]') ], [ headers => q('"a"') ], [ created_at => q('infinity') ], [ payload => 'NULL' ],
	[ key => q(repeat('k', 100000)) ], [ type => q(repeat('k', 100000)) ])
{
	my ($column, $value) = @$bad;
	my %row = (position => q(nextval('outbox_position_seq')), xid => 'pg_current_xact_id()', created_at => 'now()',
		topic => q('broken'), payload => q('{}'), $column => $value);
	my @columns = sort keys %row;

	sql('INSERT INTO outbox_log_0 (' . join(', ', @columns) . ') VALUES (' . join(', ', @row{@columns}) . '); SELECT outbox_wake()');
	wait_until($node, qq(SELECT count(*) = 1 FROM outbox_delivery d JOIN outbox_subscription s ON s.id = d.subscription
			WHERE s.name = 'broken' AND d.state = 'dead' AND last_error = 'column "$column" has no valid value'),
		"an event with $column = $value is dead");
	sql('DELETE FROM outbox_delivery');
}
is(scalar($receiver->requests('broken')), 0, 'and was not sent');
others_are_served('dead events');
unlike(slurp_file($node->logfile), qr/subscription "witness" is stuck/, 'nobody else is blamed');
unlike(slurp_file($node->logfile), qr/was terminated by signal/, 'no process has crashed');

done_testing();
