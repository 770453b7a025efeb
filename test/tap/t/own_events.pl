# With idempotency.outbox_events, an on-call webhook gets an event when an event
# is dead, or a subscription is disabled, fails or works again; and there is no
# event about the delivery of such an event.  If this fails, nobody is told that
# a customer gets nothing, or a webhook that is down fills the log.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('own_events');
my $once = "'{0 s}'";

# The payloads that the on-call webhook got with a topic, sorted, as far as
# these members go.
sub told
{
	my ($topic, @members) = @_;
	my @told = map { JSON::PP->new->utf8->decode($_->{body}) } $receiver->requests('oncall');
	return join("\n", sort map { my $data = $_->{data}; join('|', map { $data->{$_} // 'null' } @members) }
		grep { $_->{type} eq $topic } @told);
}

sub in_log
{
	return sql("SELECT count(*) FROM outbox_log WHERE topic LIKE 'outbox.%'");
}

sub is_told
{
	my ($count, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($receiver->wait_for('oncall', events => $count), $what);
	return;
}

sub passes
{
	wait_for_pass($node) for 1 .. 3;
	return;
}

subscribe($node, $receiver, '/ok/oncall', topics => q('{outbox.dead,outbox.disabled,outbox.failing}'));
subscribe($node, $receiver, '/refuse/refuses', topics => "'{a}'", retry_schedule => $once);

# --- off by default

sql(q(SELECT outbox_enqueue('a', '{}')));
wait_until($node, "SELECT dead = 1 FROM outbox_subscriptions WHERE name = 'refuses'", 'an event is dead');
is(in_log(), '0', 'there is no event about it by default');
alter_system('idempotency.outbox_events', 'on');
passes();

# --- a dead letter

sql(q(SELECT outbox_enqueue('a', '{"secret": 1}', 'key 1', 'kind')));
is_told(1, 'with the setting there is one');
is( told('outbox.dead', qw(subscription topic key type attempts last_status last_error)),
	'refuses|a|key 1|kind|1|422|answered 422', 'which tells what is dead, and why');
is(sql("SELECT string_agg(k, ' ' ORDER BY k) FROM outbox_log l, jsonb_object_keys(l.payload) k WHERE topic = 'outbox.dead'"),
	'attempts created_at key last_error last_status position subscription topic type', 'without the payload');
is(sql("SELECT l.payload->'position' = to_jsonb(d.position) AND l.key = 'refuses' FROM outbox_log l, outbox_dead d"
		  . " WHERE l.topic = 'outbox.dead' AND d.key = 'key 1'"), 't', 'with the position');

# --- many at once: one each, and as many as there are dead letters

sql("SELECT count(outbox_enqueue('a', '{}')) FROM generate_series(1, 300)");
is_told(301, 'each dead letter has its event');
is(sql("SELECT count(DISTINCT payload->'position') = 301 AND count(*) = 301 FROM outbox_log WHERE topic = 'outbox.dead'"), 't', 'and one only');

# --- disabled

subscribe($node, $receiver, '/gone/moved', topics => "'{b}'");
sql(q(SELECT outbox_enqueue('b', '{}')));
is_told(302, 'a subscription is disabled');
is(told('outbox.disabled', qw(subscription reason)), 'moved|the endpoint answered 410 Gone', 'the event says why');

# --- failing, and working again

$receiver->switch('shaky', 'fail');
subscribe($node, $receiver, '/switch/shaky', topics => "'{c}'", retry_schedule => "array_prepend('0 s', array_fill('1 h'::interval, '{9}'))");
sql("SELECT count(outbox_enqueue('c', '{}')) FROM generate_series(1, 25)");
is_told(303, 'a subscription fails');
$receiver->switch('shaky', 'ok');
is_told(304, 'it works again');
is(sql("SELECT string_agg(payload->>'failing', ' ' ORDER BY position) FROM outbox_log WHERE topic = 'outbox.failing'"),
	'true false', 'there is one event for each change');
is(told('outbox.failing', qw(subscription)), "shaky\nshaky", 'about the subscription');

# outbox_retry ends the state, too.
$receiver->switch('shaky', 'fail');
sql("SELECT count(outbox_enqueue('c', '{}')) FROM generate_series(1, 25)");
is_told(305, 'it fails again');
wait_until($node, "SELECT failing_since IS NOT NULL FROM outbox_subscriptions WHERE name = 'shaky'", 'which is recorded');
sql("SELECT outbox_pause('shaky'); SELECT outbox_retry('shaky')");
is_told(306, 'outbox_retry ends that');
is(sql("SELECT payload->>'reason' FROM outbox_log WHERE topic = 'outbox.failing' ORDER BY position DESC LIMIT 1"),
	'outbox_retry', 'and the event says so');

# --- a webhook of that kind that is down, or whose events are dead

sql("SELECT outbox_unsubscribe('oncall'); SELECT outbox_unsubscribe('shaky')");
my $before = in_log();
subscribe($node, $receiver, '/refuse/oncall2', topics => q('{outbox.*}'), retry_schedule => $once);
subscribe($node, $receiver, '/fail/both', topics => q('{a,outbox.*}'), retry_schedule => "'{0 s,50 ms}'");
subscribe($node, $receiver, '/gone/leaves', topics => q('{outbox.dead}'));
sql("SELECT count(outbox_enqueue('a', '{}')) FROM generate_series(1, 30)");
wait_until($node, "SELECT dead >= 30 FROM outbox_subscriptions WHERE name = 'oncall2'", 'events about dead letters are dead');
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'both'", 'a webhook of that kind fails');
wait_until($node, "SELECT state = 'disabled' FROM outbox_subscriptions WHERE name = 'leaves'", 'and one is disabled');
passes();
my $dead = sql("SELECT count(*) FROM outbox_delivery d WHERE state = 'dead' AND topic = 'a' AND position > (SELECT max(position) FROM outbox_log WHERE topic = 'outbox.failing')");
is(in_log() - $before, $dead, 'only events of others have made events: the log does not grow');
is(sql("SELECT count(*) FROM outbox_log WHERE topic IN ('outbox.failing', 'outbox.disabled') AND payload->>'subscription' <> ALL ('{shaky,moved}')"),
	'0', 'and none is about a subscription that gets them');

# --- a redrive loop makes as many events as it makes dead letters

my $redriven = sql("SELECT outbox_redrive('refuses', (SELECT array_agg(position) FROM (SELECT position FROM outbox_dead WHERE subscription = 'refuses' ORDER BY 1 LIMIT 5) p))");
wait_until($node, "SELECT dead = 332 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'refuses'", 'redriven events are dead again');
is($redriven, '5', 'five were redriven');

# --- while the ring of the log is switched, the relay waits for it

my $switch = session($node);
my $log = $node->logfile;
my $waits = q(SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox_ring'::regclass AND waitstart < clock_timestamp() - interval '300 ms'));
my $seen = -s $log;
$switch->query_safe('BEGIN; LOCK TABLE outbox_ring IN SHARE ROW EXCLUSIVE MODE');
sql(q(SELECT outbox_redrive('refuses', (SELECT array_agg(position) FROM (SELECT position FROM outbox_dead WHERE subscription = 'refuses' ORDER BY 1 LIMIT 1) p))));
wait_until($node, $waits, 'the relay waits for longer than for a row');
finish($switch, 'COMMIT');
wait_until($node, "SELECT dead = 332 AND waiting = 0 FROM outbox_subscriptions WHERE name = 'refuses'", 'and then goes on');
unlike(slurp_file($log, $seen), qr/is stuck/, 'nothing was stuck');

done_testing();
