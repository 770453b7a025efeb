# A subscription with a batch gets many events in one request, once each and in
# the order of their keys, and an event that is refused keeps no other one back.
# The receiver reads the requests with the npm package cloudevents.  If this
# fails, a receiver of batches loses events, or gets them in the wrong order.

use strict;
use warnings FATAL => 'all';
use utf8;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use List::Util qw(max sum uniq);
use Receiver qw(events);
use Server;
use Test::More;

use constant { MIB => 1024 * 1024, ID_MAX => 78, KEYS => 10, EVENTS_OF_KEY => 60 };

my $receiver = Receiver->start;
my $node = start_server('batches');
my $identity = sql(q(SELECT replace(idempotency_internal.outbox_identity()::text, '-', '')));

# Subscribes a path to the topic of its name, with a batch of 8.
sub batch_to
{
	my ($path, %params) = @_;
	my ($name) = $path =~ m{([^/]+)$};
	%params = (batch => 8, retry_schedule => "'{0 s,1 h}'", timeout => "'30 min'", %params);
	return subscribe($node, $receiver, $path, topics => "'{$name}'", format => "'cloudevents'", %params);
}

# Lets the time pass for which events of a topic wait.
sub be_due
{
	my ($topic) = @_;
	sql("UPDATE outbox_delivery SET due_at = now() WHERE topic = '$topic'; SELECT outbox_wake()");
	return;
}

# Enqueues events in one transaction: their data, and the key if that has one.
sub enqueue
{
	my ($topic, @data) = @_;
	my $values = join(',', map { "('$_'::jsonb)" } @data);
	sql("SELECT count(outbox_enqueue('$topic', data, key => data ->> 'key')) FROM (VALUES $values) v(data)");
	return;
}

# The numbers in the data of each request, such as "1-8 1-4 5,7".
sub carried
{
	my ($name) = @_;
	return join(' ', map { ranges(map { $_->{data}{n} } events($_)) } $receiver->requests($name, qw(data events)));
}

sub ranges
{
	my @ranges;

	for my $n (@_)
	{
		if (@ranges && $ranges[-1][1] == $n - 1) { $ranges[-1][1] = $n }
		else { push @ranges, [ $n, $n ] }
	}
	return join(',', map { $_->[0] == $_->[1] ? $_->[0] : "$_->[0]-$_->[1]" } @ranges);
}

# How many events each request has.
sub sizes
{
	my ($name) = @_;
	return map { scalar(events($_)) } $receiver->requests($name, 'events');
}

sub wait_for_state
{
	my ($name, $condition, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($node, "SELECT $condition FROM outbox_subscriptions WHERE name = '$name'", "$name: $what");
}

sub wait_for_delivered
{
	my ($name, $count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_for_state($name, "delivered = $count AND in_flight = 0 AND waiting + parked + dead = 0",
		"$count events are delivered");
}

# Each event must have been accepted in exactly one request.
sub accepted_once
{
	my ($name, $count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @accepted = map { $_->{id} } map { events($_) } grep { $_->{status} == 200 } $receiver->requests($name, qw(id status events));
	is(scalar(@accepted) . ' ' . scalar(uniq @accepted), "$count $count", "$name: each event is accepted once");
	return;
}

# --- many events

batch_to('/each/many', batch => 100);
enqueue('many', map { qq({"n": $_, "key": "Zoë %$_"}) } 1 .. 1000);
wait_for_delivered('many', 1000);
accepted_once('many', 1000);
is(max(sizes('many')), 100, 'requests are full');
my @requests = $receiver->requests('many');
cmp_ok(scalar(@requests), '<=', 15, 'nearly all, since a transaction can be read in parts');
is(scalar(grep { $_->{verified} ne '1' } @requests), 0, 'their signatures are right');
is(join(' ', uniq map { $_->{headers}{'content-type'} } @requests), 'application/cloudevents-batch+json', 'so is their type');
is(scalar(grep { /^ce-/ } map { keys %{ $_->{headers} } } @requests), 0, 'attributes are not headers');
is(scalar(grep { !$_->{valid} } map { events($_) } @requests), 0, 'all events are valid');
my ($first) = events($requests[0]);
my $position = int($first->{sequence});
is($first->{id}, webhook_id($node, $position), 'an event has its id');
is_deeply(
	{ map { $_ => $first->{$_} } qw(specversion source type subject partitionkey datacontenttype data) },
	{
		specversion => '1.0',
		source => "/idempotency/$identity",
		type => 'many',
		subject => 'Zoë %1',
		partitionkey => 'Zoë %1',
		datacontenttype => 'application/json',
		data => { n => 1, key => 'Zoë %1' },
	},
	'and its attributes and data');
is($first->{time}, sql(q(SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
	  . " FROM outbox_log WHERE position = $position"), 'and its time');
is(scalar(uniq map { $_->{id} } @requests), scalar(@requests), 'each request has an id of its own');
cmp_ok(max(map { length $_->{id} } @requests), '<=', ID_MAX, 'of limited length');

# --- one event

batch_to('/each/single', max_in_flight => 1);
enqueue('single', '{"n": 1}');
wait_for_delivered('single', 1);
my ($request) = $receiver->requests('single');
like($request->{body}, qr/^\[\{.*\}\]$/, 'one event is an array, too');
is($request->{id}, $request->{events}[0]{id}, 'the request has the id of the event');
ok(!exists $request->{events}[0]{subject}, 'without a key it has no subject');

# --- what is ready goes, and no more is waited for

batch_to('/each/ready', max_in_flight => 1);
enqueue('ready', '{"n": 1, "hold": true}');
$receiver->wait_for('ready', requests => 1);
enqueue_numbers($node, 'ready', 2 .. 6);
wait_for_pass($node);
$receiver->release('ready');
wait_for_delivered('ready', 6);
is(carried('ready'), '1 2-6', 'events of several transactions travel together');

# --- events with headers of their own

batch_to('/each/headers', max_in_flight => 1);
sql(q(SELECT count(outbox_enqueue('headers', jsonb_build_object('n', n), headers => CASE WHEN n < 6
	THEN jsonb_build_object('X-Tenant', (n % 2)::text) END)) FROM generate_series(1, 8) n));
wait_for_delivered('headers', 8);
is(carried('headers'), '1,3,5 2,4 6-8', 'events with the same headers travel together');
is(join(' ', map { $_->{headers}{'x-tenant'} // '-' } $receiver->requests('headers')), '1 0 -', 'and the request has these');

# --- large events

batch_to('/each/large', batch => 1000, max_in_flight => 1);
enqueue('large', '{"n": 0, "hold": true}');
$receiver->wait_for('large', requests => 1);
sql(q(SELECT count(outbox_enqueue('large', jsonb_build_object('n', n, 'x', repeat('x', CASE n WHEN 5 THEN 1500000 ELSE 300000 END))))
	FROM generate_series(1, 8) n));
wait_for_pass($node);
$receiver->release('large');
wait_for_delivered('large', 9);
is(carried('large'), '0 1-3 4 5 6-8', 'a request has at most 1 MiB, or one event');
my $overhead = 600;
sql(qq(SELECT count(outbox_enqueue('large', jsonb_build_object('n', n, 'x', repeat('x', 10000 - $overhead))))
	FROM generate_series(9, 308) n));
wait_for_delivered('large', 309);
my @bytes = map { length $_->{body} } grep { events($_) > 1 } $receiver->requests('large');
cmp_ok(max(@bytes), '<=', MIB, 'also if many events are small');
cmp_ok(max(@bytes), '>', MIB - 10000, 'and that is used');

# --- an event that is refused

for my $status (400, 409, 413, 415, 422, 500)
{
	my $name = "first$status";
	batch_to("/each/$name", max_in_flight => 1);
	enqueue($name, qq({"n": 1, "fail": 1000, "status": $status}), map { qq({"n": $_}) } 2 .. 8);
	wait_for_state($name, 'delivered = 7 AND waiting = 1', 'all but the first are delivered');
	is(carried($name), '1-8 1-4 1-2 1 2 3-4 5-8', "$name: halves are sent until it is alone");
	accepted_once($name, 7);
	is(sql("SELECT attempts, last_status, last_error FROM outbox_deliveries WHERE subscription = '$name'"),
		"1|$status|answered $status", "$name: that was one attempt");
}
is(sql('SELECT count(*) FROM outbox_attempts'), 6, 'no other event has an attempt');
$receiver->release('first422');
sql("SELECT outbox_retry('first422')");
wait_for_delivered('first422', 8);

batch_to('/each/last', max_in_flight => 1);
enqueue('last', map { $_ == 8 ? '{"n": 8, "fail": 1000}' : qq({"n": $_}) } 1 .. 8);
wait_for_state('last', 'delivered = 7 AND waiting = 1', 'all but the last are delivered');
is(carried('last'), '1-8 1-4 5-8 5-6 7-8 7 8', 'last: halves are sent until it is alone');

batch_to('/each/all', max_in_flight => 1);
enqueue('all', map { qq({"n": $_, "fail": 1000}) } 1 .. 8);
wait_for_state('all', 'delivered = 0 AND waiting = 8', 'each event waits');
is(carried('all'), '1-8 1-4 1-2 1 2 3-4 3 4 5-8 5-6 5 6 7-8 7 8', 'all: after each was tried alone');
is(sql("SELECT DISTINCT attempts FROM outbox_deliveries WHERE subscription = 'all'"), 1, 'all: that was one attempt at each');
is(sql("SELECT state FROM outbox_subscriptions WHERE name = 'all'"), 'active', 'all: an endpoint that refuses events is not down');

batch_to('/each/thousand', batch => 1000, max_in_flight => 1);
enqueue('thousand', map { $_ == 300 ? '{"n": 300, "fail": 1000}' : qq({"n": $_}) } 1 .. 1000);
wait_for_state('thousand', 'delivered = 999 AND waiting = 1', 'all but one are delivered');
accepted_once('thousand', 999);
cmp_ok(scalar($receiver->requests('thousand')), '<=', 30, 'thousand: with few requests');

batch_to('/each-3/small', max_in_flight => 1);
enqueue('small', map { qq({"n": $_}) } 1 .. 8);
wait_for_delivered('small', 8);
is(carried('small'), '1-8 1-4 1-2 3-4 5-8 5-6 7-8', 'after 413 requests are halved until they are small enough');
is(sql("SELECT count(*) FROM outbox_attempts WHERE subscription = 'small'"), 0, 'which is no failed attempt');

# --- events behind one of their key that is refused

batch_to('/each/behind', max_in_flight => 1);
enqueue('behind', '{"n": 1, "key": "a"}', '{"n": 2, "key": "b", "fail": 1000}', '{"n": 3, "key": "b"}',
	'{"n": 4, "key": "c"}', map { qq({"n": $_, "key": "b"}) } 5 .. 8);
wait_for_state('behind', 'delivered = 2 AND waiting = 1 AND parked = 5', 'they are parked');
is(carried('behind'), '1-3,5-8,4 1-3,5 1-2 1 2 4', 'behind: though they were in the same request');
is(sql("SELECT string_agg(attempts || state, ' ' ORDER BY position) FROM outbox_deliveries WHERE subscription = 'behind'"),
	'1waiting 0parked 0parked 0parked 0parked 0parked', 'behind: it was no attempt at them');
$receiver->release('behind');
sql("SELECT outbox_retry('behind')");
wait_for_delivered('behind', 8);
is((carried('behind') =~ /(\S+)$/)[0], '2-3,5-8', 'behind: they are sent with it, in order');

batch_to('/each/mortal', max_in_flight => 1, retry_schedule => "'{0 s}'");
enqueue('mortal', map { qq({"n": $_, "key": "k", "fail": ) . ($_ == 1 ? 1000 : 0) . '}' } 1 .. 4);
wait_for_state('mortal', 'delivered = 3 AND dead = 1', 'after a dead event');
is(carried('mortal'), '1-4 1-2 1 2 3-4', 'mortal: the others of its key are sent');

batch_to('/switch/dead', max_in_flight => 1, retry_schedule => "'{0 s}'");
$receiver->switch('dead', 'late-404');
enqueue('dead', map { qq({"n": $_, "key": "k"}) } 1 .. 4);
$receiver->wait_for('dead', requests => 1);
$receiver->switch('dead', 'ok');
$receiver->release('dead');
wait_for_state('dead', 'delivered = 3 AND dead = 1', 'also if a whole request fails, only the first of a key is dead');
is(carried('dead'), '1-4 2-4', 'dead: and the others are sent again');

# --- a key over two batches

batch_to('/each/across');
enqueue('across', '{"n": 1, "key": "k", "hold": true, "fail": 1000}', '{"n": 2, "key": "k"}', '{"n": 3, "key": "other"}');
$receiver->wait_for('across', requests => 1);
enqueue('across', '{"n": 4, "key": "k"}', '{"n": 5, "key": "new"}');
$receiver->wait_for('across', requests => 2);
enqueue('across', '{"n": 6, "key": "k"}', '{"n": 7, "key": "new"}');
$receiver->wait_for('across', requests => 3);
is(carried('across'), '1-3 5 7', 'a key is not in two requests at the same time');
$receiver->release('across');
wait_for_delivered('across', 7);
is(carried('across'), '1-3 5 7 4,6', 'its next events follow, from two batches in one request');

# --- a request that fails as a whole

$receiver->switch('again', 'late-503');
batch_to('/switch/again', batch => 80, max_in_flight => 1, retry_schedule => "'{0 s,1 h,1 h}'");
enqueue('again', map { qq({"n": $_, "key": "k) . int($_ / 2) . '"}' } 1 .. 5);
$receiver->wait_for('again', requests => 1);
$receiver->switch('again', 'ok');
$receiver->release('again');
wait_for_state('again', 'waiting = 3 AND parked = 2', 'the first of each key waits');
is(sql("SELECT string_agg(attempts::text, ' ' ORDER BY position) FROM outbox_deliveries WHERE subscription = 'again'"),
	'1 1 0 1 0', 'again: an event behind another one was not tried');
sql(q(BEGIN; SELECT outbox_retry('again');
	UPDATE outbox_delivery SET due_at = due_at - position * interval '1 s' WHERE state = 'waiting' AND topic = 'again'; COMMIT));
wait_for_delivered('again', 5);
@requests = $receiver->requests('again');
is(carried('again'), '1-5 4-5,2-3,1', 'again: they are sent again in one request, those first that are due the longest time');
isnt($requests[1]{id}, $requests[0]{id}, 'again: which has another id, as its body is another');
isnt($requests[0]{id}, $requests[0]{events}[0]{id}, 'again: it is not that of an event');
is(scalar(grep { $_->{verified} ne '1' } @requests), 0, 'again: and is signed');

# --- an event that breaks the receiver, so its whole request fails

batch_to('/each/breaks', max_in_flight => 1, retry_schedule => "'{0 s,20 ms,20 ms}'");
enqueue('breaks', map { qq({"n": $_, "key": "k") . ($_ == 4 ? ', "fail": 1000, "status": 502}' : '}') } 1 .. 6);
wait_for_state('breaks', 'delivered = 5 AND dead = 1', 'no other event of its key is dead');
is(carried('breaks'), '1-6 1 2-6 2 3-6 3 4-6 4 4 5-6', 'breaks: since it is retried alone');

batch_to('/each/tenth', batch => 40, max_in_flight => 1, retry_schedule => "'{0 s,1 h,1 h,1 h}'");
enqueue('tenth', map { qq({"n": $_) . ($_ == 17 ? ', "fail": 1000, "status": 502}' : '}') } 1 .. 40);
wait_for_state('tenth', 'waiting = 40', 'a request fails');
be_due('tenth');
wait_for_state('tenth', 'delivered = 36 AND waiting = 4', 'all but four are delivered');
be_due('tenth');
wait_for_state('tenth', 'delivered = 39 AND waiting = 1', 'all but one are delivered');
is(join(' ', sizes('tenth')), '40 4 4 4 4 4 4 4 4 4 4 1 1 1 1', 'tenth: each attempt is made with a tenth of the events');

batch_to('/each/short', batch => 40, max_in_flight => 1);
enqueue('short', map { qq({"n": $_) . ($_ == 2 ? ', "fail": 1000, "status": 502}' : '}') } 1 .. 5);
wait_for_state('short', 'waiting = 5', 'a request fails');
be_due('short');
wait_for_state('short', 'delivered = 4 AND dead = 1', 'one event is dead');
is(join(' ', sizes('short')), '5 1 1 1 1 1', 'short: the last attempt is made with each event alone');

# --- an endpoint that fails

batch_to('/switch/few', max_in_flight => 1);
$receiver->switch('few', 'late-404');
enqueue('few', map { qq({"n": $_}) } 1 .. 40);
$receiver->wait_for('few', requests => 1);
$receiver->release('few');
for my $n (2 .. 5)
{
	$receiver->wait_for('few', requests => $n);
	$receiver->release('few');
}
wait_for_state('few', "waiting = 40 AND state = 'active'", 'five failed requests with 40 events are five failures');

batch_to('/switch/down', max_in_flight => 1);
$receiver->switch('down', 'fail');
enqueue('down', map { qq({"n": $_}) } 1 .. 400);
wait_for_state('down', "state = 'failing'", 'an endpoint that answers 500 to everything is down');
cmp_ok(scalar($receiver->requests('down')), '<', 60, 'down: which takes few requests');
$receiver->switch('down', 'ok');
wait_for_delivered('down', 400);

# --- altered while a request is in flight

batch_to('/switch/altered');
$receiver->switch('altered', 'late-422');
enqueue('altered', map { qq({"n": $_, "key": "k) . $_ % 2 . '"}' } 1 .. 6);
$receiver->wait_for('altered', requests => 1);
sql("SELECT outbox_alter('altered', batch => 1)");
wait_for_pass($node);
$receiver->switch('altered', 'ok');
$receiver->release('altered');
wait_for_delivered('altered', 6);
@requests = $receiver->requests('altered');
is(join(' ', sizes('altered')), '6 1 1 1 1 1 1', 'altered: what was refused is sent one by one');
is(scalar(grep { $_->{event} && $_->{event}{valid} } @requests), 6, 'altered: in binary mode');
my @odd = grep { $_ % 2 } map { $_->{data}{n} } @requests[ 1 .. 6 ];
my @even = grep { $_ % 2 == 0 } map { $_->{data}{n} } @requests[ 1 .. 6 ];
is("@odd @even", '1 3 5 2 4 6', 'altered: in order');

sql("SELECT outbox_alter('altered', batch => 3)");
enqueue('altered', map { qq({"n": $_}) } 7 .. 12);
wait_for_delivered('altered', 12);
is((carried('altered') =~ /^.* (.* .*)$/)[0], '7-9 10-12', 'altered: the new batch is used');

# --- halves that were not sent when the subscription is altered

batch_to('/switch/half', max_in_flight => 1);
$receiver->switch('half', 'late-413');
enqueue('half', map { qq({"n": $_, "key": "k"}) } 1 .. 8);
$receiver->wait_for('half', requests => 1);
$receiver->release('half');
$receiver->wait_for('half', requests => 2);
sql("SELECT outbox_alter('half', timeout => '20 min')");
wait_for_pass($node);
$receiver->switch('half', 'ok');
$receiver->release('half');
wait_for_delivered('half', 8);
is(carried('half'), '1-8 1-4 1-8', 'half: all events are sent again, in order');
accepted_once('half', 8);

# --- the same while a half waits for the end of a pause

batch_to('/switch/paused', max_in_flight => 2);
$receiver->switch('paused', 'late-413');
enqueue('paused', map { qq({"n": $_}) } 1 .. 8);
$receiver->wait_for('paused', requests => 1);
$receiver->switch('paused', 'busy-60');
enqueue('paused', '{"n": 9}');
$receiver->wait_for('paused', requests => 2);
wait_for_state('paused', 'waiting = 1 AND in_flight = 1', 'the endpoint has asked for a pause');
$receiver->release('paused');
wait_for_state('paused', 'in_flight = 0', 'a half waits');
sql("SELECT outbox_alter('paused', url => '" . $receiver->url('/each/moved') . "')");
$receiver->wait_for('moved', events => 8);
wait_for_state('paused', 'delivered >= 8 AND in_flight = 0', 'it goes to the new URL');
is(carried('paused'), '1-8 9', 'paused: and not to the old one');

# --- events that expire while a half of their request waits

batch_to('/each-4/expired', max_in_flight => 1);
sql(q(SELECT count(outbox_enqueue('expired', jsonb_build_object('n', n, 'hold', n = 1), key => CASE WHEN n > 4 THEN 'k' END,
	expires_at => CASE WHEN n IN (4, 6) THEN now() + interval '3 s' END)) FROM generate_series(1, 7) n));
$receiver->wait_for('expired', requests => 2);
wait_until($node, q(SELECT bool_and(expires_at < clock_timestamp()) FROM outbox_log WHERE topic = 'expired' AND expires_at IS NOT NULL),
	'their time is over');
$receiver->release('expired');
wait_for_state('expired', 'delivered = 5 AND dead = 2 AND in_flight = 0', 'they are dead');
is(carried('expired'), '1-7 1-3 5 7', 'expired: they are not sent, and the one behind them is');
is(sql(q(SELECT string_agg(payload ->> 'n' || ' ' || last_error, ', ' ORDER BY position) FROM outbox_delivery WHERE topic = 'expired')),
	'4 expired before it was sent, 6 expired before it was sent', 'expired: as they would be alone');

# --- many keys, failures of all kinds, while the relay is killed and the
# --- subscription is paused and altered

batch_to('/each/chaos', batch => 7, max_in_flight => 4, retry_schedule => "'{0 s" . ',20 ms' x 50 . "}'");
my @statuses = (422, 500, 503, 404);
for my $round (0 .. 5)
{
	my @n = map { $round * EVENTS_OF_KEY / 6 + $_ } 1 .. EVENTS_OF_KEY / 6;
	enqueue('chaos', map {
		my $n = $_;
		map { sprintf('{"n": %d, "key": "k%d", "fail": %d, "status": %d}', $n, $_, ($n * 7 + $_) % 11 == 0 ? 2 : 0, $statuses[ $n % 4 ]) }
			1 .. KEYS;
	} @n);
	$receiver->wait_for('chaos', events => KEYS * EVENTS_OF_KEY / 6 * $round + 30);
	terminate_worker($node, 'relay') if $round % 3 == 0;
	sql("SELECT outbox_pause('chaos')") if $round % 3 == 1;
	sql("SELECT outbox_resume('chaos')") if $round % 3 == 1;
	sql("SELECT outbox_alter('chaos', batch => $round + 2)") if $round % 3 == 2;
}
wait_for_state('chaos', 'lag_events = 0 AND waiting + parked + dead = 0', 'all is delivered in the end');
is(scalar(uniq map { $_->{id} } map { events($_) } grep { $_->{status} == 200 } $receiver->requests('chaos', qw(id status events))),
	KEYS * EVENTS_OF_KEY, 'chaos: nothing is lost');
is($receiver->overtakings('chaos'), 0, 'chaos: no event overtakes another of its key');
cmp_ok(scalar(grep { $_ > 1 } sizes('chaos')), '>', 10, 'chaos: and they travel together');

# --- the relay is killed while requests are in flight

batch_to('/hold/killed', batch => 10, max_in_flight => 2);
enqueue('killed', map { qq({"n": $_}) } 1 .. 40);
$receiver->wait_for('killed', requests => 2);
terminate_worker($node, 'relay');
$receiver->wait_for('killed', requests => 4);
$receiver->release('killed');
wait_for_delivered('killed', 40);
@requests = $receiver->requests('killed');
is(join(' ', map { $_->{id} } @requests[ 2, 3 ]), join(' ', map { $_->{id} } @requests[ 0, 1 ]),
	'killed: the same events are sent again, with the same ids');
is(sum(map { $_ > 0 } sizes('killed')), 6, 'killed: and the others once');

# --- the server crashes between the halves of a request

batch_to('/switch/crashed', max_in_flight => 1);
$receiver->switch('crashed', 'each-4');
enqueue('crashed', map { qq({"n": $_, "hold": 1, "key": "k) . $_ % 2 . '"}' } 1 .. 8);
$receiver->wait_for('crashed', requests => 2);
is(carried('crashed'), '1,3,5,7,2,4,6,8 1,3,5,7', 'crashed: the first half is not answered');
$receiver->switch('crashed', 'ok');
kill 'KILL', worker_pid($node, 'relay');
wait_for_delivered('crashed', 8);
accepted_once('crashed', 8);
my @orders = map { my $odd = $_; join(' ', grep { $_ % 2 == $odd } map { $_->{data}{n} } events(($receiver->requests('crashed'))[-1])) } 1, 0;
is(join(' ', @orders), '1 3 5 7 2 4 6 8', 'crashed: all are sent again, in order');

done_testing();
