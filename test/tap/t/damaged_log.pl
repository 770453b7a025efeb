# A log that cannot be read.  An event with a damaged payload stops only the
# subscriptions that want it; a damaged page stops the relay, which goes on when
# it is repaired, or given up as the page "What to do when" says.  If this fails, one bad sector ends the relay again and again,
# or events behind it are skipped.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Page;
use Receiver;
use Server;
use Test::More;

use constant PAGE => 8192;

my $receiver = Receiver->start;
my $node = start_server('damaged_log');

sub is_in_state
{
	my ($name, $state) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT state = '$state' FROM outbox_subscriptions WHERE name = '$name'", "$name is $state");
}

sub all_attached
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, 'SELECT bool_and(head IS NOT DISTINCT FROM 0) FROM outbox_partition', 'all follow the head');
}

# The segment that has an event.
sub segment
{
	my ($position) = @_;
	return sql(join(' UNION ALL ', map { "SELECT tableoid::regclass FROM outbox_log_$_ WHERE position = $position" } 0 .. 2));
}

subscribe($node, $receiver, '/ok/witness', topics => q('{witness}'));
subscribe($node, $receiver, '/ok/shop', topics => q('{shop}'));
subscribe($node, $receiver, '/ok/filtered', topics => q('{shop}'), filter => q('$.n > 0'));
enqueue_numbers($node, $_, 1) for qw(witness shop);
$receiver->wait_for($_, events => 1) for qw(witness shop filtered);
all_attached();

# --- one event

sql('CREATE EXTENSION pg_surgery');
my $relay = worker_pid($node, 'relay');
kill('STOP', $relay);
my $position = sql(q(SELECT outbox_enqueue('shop',
	jsonb_build_object('n', 2, 'text', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n)))));
my $segment = segment($position);
my $toast = sql("SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$segment'::regclass");
cmp_ok(sql("SELECT count(*) FROM $toast"), '>', 0, 'the payload is stored out of line');
sql("SELECT heap_force_kill('$toast', array_agg(ctid)) FROM $toast");
enqueue_numbers($node, 'witness', 2);
enqueue_numbers($node, 'shop', 3);
kill('CONT', $relay);
$receiver->wait_for('witness', events => 2);
for my $name (qw(shop filtered))
{
	is_in_state($name, 'stuck');
	like(sql("SELECT reason FROM outbox_subscriptions WHERE name = '$name'"), qr/^missing chunk number 0 for toast value/, 'and says why');
}
enqueue_numbers($node, 'witness', 3);
$receiver->wait_for('witness', events => 3);
is(worker_pid($node, 'relay'), $relay, 'the relay goes on');
sql("DELETE FROM $segment WHERE position = $position");
sql("SELECT outbox_resume(name) FROM outbox_subscription");
for my $name (qw(shop filtered))
{
	$receiver->wait_for($name, events => 2);
	is_in_state($name, 'active');
	is($receiver->numbers($name), '1 3', 'without the damaged event, all others arrive once');
}
is(worker_pid($node, 'relay'), $relay, 'from the same relay');

# --- a page

all_attached();
wait_until($node, 'SELECT position = (SELECT last_value FROM outbox_position_seq) FROM outbox_head', 'the head has read all');
kill('STOP', $relay);
$position = sql(q(SELECT outbox_enqueue('shop', '{"n": 4}')));
$segment = segment($position);
my ($page) = sql("SELECT ctid FROM $segment WHERE position = $position") =~ /(\d+)/;
my $file = $node->data_dir . '/' . sql("SELECT pg_relation_filepath('$segment')");
sql('CHECKPOINT');
stop_with($relay);

# Stops the server at once although a process of it is stopped, for which it would
# wait for 5 s.
sub stop_with
{
	my ($pid) = @_;
	kill('QUIT', $node->{_pid});
	kill('KILL', $pid);
	$node->stop('immediate', fail_ok => 1);
	return;
}

# Replaces the page, and returns what was there.
sub replace_page
{
	my ($bytes) = @_;
	my $before;

	open(my $f, '+<:raw', $file) or die "$file: $!";
	sysseek($f, $page * PAGE, 0);
	sysread($f, $before, PAGE);
	sysseek($f, $page * PAGE, 0);
	syswrite($f, $bytes) == PAGE or die "$file: $!";
	close($f);
	return $before;
}

my $kept = replace_page("\xff" x PAGE);
my $log_start = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/WARNING:  the relay cannot read the log: invalid page in block $page of relation/, $log_start);
$relay = worker_pid($node, 'relay');
replace_page($kept);
$node->wait_for_log(qr/LOG:  the relay reads the log again/, $log_start);
enqueue_numbers($node, 'shop', 5);
for my $name (qw(shop filtered))
{
	$receiver->wait_for($name, events => 4);
	is($receiver->numbers($name), '1 3 4 5', 'nothing is lost');
}
is(worker_pid($node, 'relay'), $relay, 'from the same relay');

# --- a page that is given up

kill('STOP', $relay);
my ($lost) = sql(q(SELECT outbox_enqueue('shop', '{"n": 6}')));
sql(q(SELECT outbox_enqueue('filler', to_jsonb(repeat(md5(n::text), 50))) FROM generate_series(1, 10) n));
my ($found) = sql(q(SELECT outbox_enqueue('shop', '{"n": 7}')));
$segment = segment($lost);
($page) = sql("SELECT ctid FROM $segment WHERE position = $lost") =~ /(\d+)/;
is(sql("SELECT count(*) FROM $segment WHERE position = $found AND ctid::text NOT LIKE '($page,%'"), 1, 'another page has an event, too');
$file = $node->data_dir . '/' . sql("SELECT pg_relation_filepath('$segment')");
sql('CHECKPOINT');
stop_with($relay);
replace_page("\xff" x PAGE);
$log_start = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/WARNING:  the relay cannot read the log: invalid page in block $page of relation/, $log_start);

my ($give_up) = Page->load('operations/runbook.md')->part('A page of the log is damaged')->blocks('sql');
my ($from, $to) = split(/\|/, sql($give_up =~ s/outbox_log_0/$segment/r));
ok($from <= $lost && $lost <= $to && $to < $found, 'it says what is lost');
$node->wait_for_log(qr/LOG:  the relay reads the log again/, $log_start);
for my $name (qw(shop filtered))
{
	$receiver->wait_for($name, events => 5);
	is($receiver->numbers($name), '1 3 4 5 7', 'what other pages have arrives');
}
enqueue_numbers($node, 'shop', 8);
$receiver->wait_for('shop', events => 6);

done_testing();
