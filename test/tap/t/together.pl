# Partitions that have read equally far read the log together.  If this fails,
# the first events after a crash, or after a relay has ended, wait until each of
# thousands of subscriptions has read the log for itself.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant { MANY => 300, BACKLOG => 1000, LIMITED => 40, RATE => 20 };

my $receiver = Receiver->start;
my $node = start_server('together');

# How many rows of the log were read.
my $rows = q(SELECT sum(pg_stat_get_tuples_fetched(i.indexrelid) + pg_stat_get_tuples_returned(i.indrelid))
	FROM pg_index i WHERE i.indrelid::regclass::text ~ 'outbox_log_');

sub all_attached
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition', $what);
}

sub enqueue
{
	my ($topic, $count) = @_;
	sql("SELECT count(outbox_enqueue('$topic', jsonb_build_object('n', n), key => (n % 7)::text)) FROM generate_series(1, $count) n");
	return;
}

sql("SELECT count(outbox_subscribe('many ' || n, '" . $receiver->url('/ok/many') . "', topics => array['some', 'topic ' || n],"
	  . " filter => CASE WHEN n % 2 = 0 THEN '\$.n > 0' END::jsonpath)) FROM generate_series(1, @{[ MANY ]}) n");
subscribe($node, $receiver, '/ok/all', topics => q('{*}'));
subscribe($node, $receiver, '/hold/slow', topics => q('{*}'), max_in_flight => 1);
subscribe($node, $receiver, '/ok/limited', topics => q('{topic*}'), rate_limit => 20);
all_attached('all follow the head');

# --- many have the same to read

# Half of them have read two events more.
sql(q(SELECT outbox_pause(name) FROM outbox_subscription WHERE name ~ '^many .*[0-4]$'));
enqueue('some', 2);
$receiver->wait_for('many', requests => MANY);
sql("SELECT outbox_pause(name) FROM outbox_subscription WHERE name <> 'all' AND state = 'active'");
wait_until($node, 'SELECT count(head) = 1 FROM outbox_partition', 'only one follows it');
enqueue('nobody', BACKLOG);
enqueue('topic 1', 20);
enqueue('some', 2);
my $late = session($node);
$late->query_safe('BEGIN');
$late->query_safe(q(SELECT outbox_enqueue('some', '{"n": 3}')));
enqueue('topic 2', 20);
$receiver->wait_for('all', events => BACKLOG + 44);
sql('SELECT pg_sleep(1.5)');    # statistics are reported once in a second
my $before = sql($rows);
sql('SELECT outbox_resume(name) FROM outbox_subscription');
$receiver->wait_for('many', requests => 4 * MANY + 40);
$late->query_safe('COMMIT');
$receiver->wait_for('many', requests => 5 * MANY + 40);
$receiver->wait_for('all', events => BACKLOG + 45);
$receiver->release('slow');
$receiver->wait_for('slow', events => BACKLOG + 45);
$receiver->wait_for('limited', requests => 40);
all_attached('all follow the head again');
sql('SELECT pg_sleep(1.5)');
cmp_ok(sql($rows) - $before, '<', 15 * BACKLOG, 'the log was not read for each');
is(scalar($receiver->requests('many')), 5 * MANY + 40, 'each gets what it wants, once');
is(scalar($receiver->requests($_)), BACKLOG + 45, "$_ gets everything once") for qw(all slow);
is(scalar($receiver->requests('limited')), 40, 'as does one with a limit');

# --- a change of topics when many read together

sql("SELECT outbox_pause(name) FROM outbox_subscription WHERE name <> 'all'");
wait_until($node, 'SELECT count(head) = 1 FROM outbox_partition', 'only one follows the head');
enqueue('nobody', 20);
sql(q(SELECT outbox_resume(name) FROM outbox_subscription; SELECT count(outbox_alter('many ' || n, topics => '{other}')) FROM generate_series(1, 300) n;
	SELECT outbox_enqueue('other', '{"n": 9}')));
$receiver->wait_for('many', requests => 6 * MANY + 40);

# --- a position that one has by itself, and others from the head

sql("SELECT count(outbox_unsubscribe(name)) FROM outbox_subscription WHERE name ~ '^(many|slow|limited)'");
subscribe($node, $receiver, '/ok/alone', topics => q('{*}'));
all_attached('both follow the head');
$late->query_safe('BEGIN');
$late->query_safe(q(SELECT outbox_enqueue('topic', '{"n": 1}')));
enqueue('topic', 1);
$receiver->wait_for('alone', events => 1);
my $xid = $late->query_safe('SELECT pg_current_xact_id()');
wait_until($node, "SELECT stragglers = '{$xid}' FROM outbox_head", 'the head has passed an open transaction');
all_attached('and both still follow it');
sql(q(UPDATE outbox_partition p SET head = NULL, position = h.position, stragglers = h.stragglers,
		straggler_froms = ARRAY[h.straggler_froms[1] - 1]
	FROM outbox_head h, outbox_subscription s WHERE s.id = p.subscription AND s.name = 'alone'));
ok(terminate_worker($node, 'relay'), 'the relay is started again');
enqueue('topic', 1);
$receiver->wait_for('alone', events => 2);
$late->query_safe('COMMIT');
$receiver->wait_for('alone', events => 3);

# --- all that read together have taken as much as their limits allow

sql("SELECT outbox_unsubscribe('alone')");
sql("SELECT count(outbox_subscribe('few ' || n, '" . $receiver->url('/ok/few') . "', topics => '{*}', rate_limit => @{[ RATE ]})) FROM generate_series(1, @{[ LIMITED ]}) n");
all_attached('all of them follow the head');
sql('SELECT outbox_pause(name) FROM outbox_subscription');
wait_until($node, 'SELECT bool_and(head IS NULL) FROM outbox_partition', 'none follows it');
enqueue('topic', 3 * BACKLOG);
$before = sql($rows);
sql('SELECT outbox_resume(name) FROM outbox_subscription');
$receiver->wait_for('few', requests => 2 * RATE * LIMITED);
sql('SELECT pg_sleep(1.5)');
cmp_ok(sql($rows) - $before, '<', 2 * $receiver->requests('few') + 10 * BACKLOG, 'no more is read than they take');

$late->quit;
done_testing();
