# Events of committed transactions are delivered once, as Standard Webhooks or
# CloudEvents specify; events of aborted ones are not.  If this fails, receivers
# get events that never happened, or cannot verify those that did.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('delivery');

# --- what an event looks like

subscribe($node, $receiver, '/ok/plain',
	topics => "'{plain}'",
	headers => q('{"X-Shop": "main", "X-Both": "subscription"}'));
my $position = sql(q(
	SELECT outbox_enqueue('plain', '{"n": 1, "text": "žluťoučký \"kůň\""}',
		key => 'k-1', type => 'order.placed', headers => '{"X-Both": "event"}')));
$receiver->wait_for('plain', events => 1);
my ($event) = $receiver->requests('plain');
my $headers = $event->{headers};

is($event->{verified}, JSON::PP::true, 'the npm package standardwebhooks accepts the signature');
is($event->{id}, webhook_id($node, $position),
	'webhook-id has the identity of the outbox, the position and the time');
is($headers->{'idempotency-key'}, qq("$event->{id}"), 'Idempotency-Key is the webhook-id, quoted');
is($headers->{'content-type'}, 'application/json', 'the body is declared as JSON');
is($event->{type}, 'order.placed', 'the body has the type');
like($event->{body}, qr/"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"/,
	'the body has a timestamp of ISO 8601');
is($event->{data}{text}, "\x{17e}lu\x{165}ou\x{10d}k\x{fd} \"k\x{16f}\x{148}\"",
	'the data is the payload');
is($headers->{'x-shop'}, 'main', 'headers of the subscription are sent');
is($headers->{'x-both'}, 'event', 'headers of the event come before them');

# --- the generated secret signs

my $secret = sql("SELECT outbox_subscribe('own', '" . $receiver->url('/ok/own') . "', topics => '{own}')");
$receiver->set_secret('own', $secret);
enqueue_numbers($node, 'own', 1);
$receiver->wait_for('own', events => 1);
is(($receiver->requests('own'))[0]{verified}, JSON::PP::true,
	'the secret that outbox_subscribe has returned verifies');

# --- only what commits

subscribe($node, $receiver, '/ok/commits', topics => "'{commits}'");
sql(q(
	SELECT outbox_enqueue('commits', '{"n": 1}');
	BEGIN;
	SELECT outbox_enqueue('commits', '{"n": 2}');
	ROLLBACK;
	BEGIN;
	SELECT outbox_enqueue('commits', '{"n": 3}');
	SAVEPOINT a;
	SELECT outbox_enqueue('commits', '{"n": 4}');
	ROLLBACK TO a;
	SAVEPOINT b;
	SELECT outbox_enqueue('commits', '{"n": 5}');
	RELEASE b;
	COMMIT;
	DO $$ BEGIN
		FOR i IN 6 .. 9 LOOP
			PERFORM outbox_enqueue('commits', jsonb_build_object('n', i));
			IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
		END LOOP;
	END $$;
	SELECT outbox_enqueue('commits', '{"n": 10}');
));
$receiver->wait_for('commits', events => 6);
is($receiver->sorted_numbers('commits'), '1 3 5 6 8 10',
	'what has committed arrives once, and nothing of what was rolled back');

# --- topics

subscribe($node, $receiver, '/ok/topics', topics => "'{order.*,*.v_2,exact}'");
sql(q(
	SELECT outbox_enqueue(topic, jsonb_build_object('n', n))
	FROM (VALUES (1, 'order.placed'), (2, 'orders'), (3, 'exact'), (4, 'exactly'),
		(5, 'a.v_2'), (6, 'a.vx2'), (7, 'order.'), (8, 'ORDER.placed'), (9, 'order.end'))
		AS v(n, topic)
	ORDER BY n
));
$receiver->wait_for('topics', events => 5);
is($receiver->sorted_numbers('topics'), '1 3 5 7 9',
	'a subscription gets the topics that match its patterns');

# --- a retry is the same event

subscribe($node, $receiver, '/told/again', topics => "'{again}'",
	retry_schedule => "'{0 s,100 ms,100 ms}'");
sql(q(SELECT outbox_enqueue('again', '{"n": 1, "fail": 2}')));
$receiver->wait_for('again', requests => 3);
my @attempts = $receiver->requests('again');
is(join(' ', map { $_->{status} } @attempts), '500 500 200',
	'an event is sent until it is accepted');
is(scalar(keys %{ { map { $_->{id} => 1 } @attempts } }), 1,
	'the webhook-id is the same over retries');
is(scalar(keys %{ { map { $_->{body} => 1 } @attempts } }), 1, 'the body is the same over retries');
is(scalar(grep { $_->{verified} } @attempts), 3, 'each attempt is signed');

# --- CloudEvents

subscribe($node, $receiver, '/ok/cloud', topics => "'{cloud}'", format => "'cloudevents'");
sql(q(SELECT outbox_enqueue('cloud', '{"n": 7}', key => 'Größe 50 %', type => 'order.placed')));
$receiver->wait_for('cloud', events => 1);
($event) = $receiver->requests('cloud');
my $cloud = $event->{event};
is($cloud->{valid}, JSON::PP::true, 'the npm package cloudevents accepts the event');
is($cloud->{specversion}, '1.0', 'specversion');
is($cloud->{id}, $event->{id}, 'id is the webhook-id');
is($cloud->{type}, 'order.placed', 'type');
like($cloud->{source}, qr{^/idempotency/[0-9a-f]{32}$}, 'source is the outbox');
is($event->{headers}{'ce-subject'}, 'Gr%C3%B6%C3%9Fe%2050%20%25',
	'subject is the key, percent-encoded');
is($event->{headers}{'ce-partitionkey'}, 'Gr%C3%B6%C3%9Fe%2050%20%25', 'and so is partitionkey');
like($event->{headers}{'ce-sequence'}, qr/^\d{19}$/, 'sequence sorts as text');
is_deeply($cloud->{data}, { n => 7 }, 'the body is the payload alone');
is($event->{verified}, JSON::PP::true, 'and it is signed, too');

# --- deliver_at

subscribe($node, $receiver, '/ok/later', topics => "'{later}'");
enqueue_numbers($node, 'later', 0);
$receiver->wait_for('later', events => 1);
sql(q(
	SELECT outbox_enqueue('later', '{"n": 1}', deliver_at => clock_timestamp() + interval '1 hour');
	SELECT outbox_enqueue('later', '{"n": 2}', deliver_at => clock_timestamp() - interval '1 day');
	SELECT outbox_enqueue('later', '{"n": 3}');
));
$receiver->wait_for('later', events => 3);
like($receiver->numbers('later'), qr/^0 (2 3|3 2)$/, 'no event waits for one with deliver_at');
sql(q(SELECT outbox_enqueue('later', '{"n": 4}', deliver_at => clock_timestamp() + interval '1 s')));
$receiver->wait_for('later', events => 4);
is(sql(q(SELECT deliver_at <= clock_timestamp() FROM outbox_log WHERE topic = 'later' AND payload = '{"n": 4}')), 't', 'which waits for its time');
like($receiver->numbers('later'), qr/4$/, 'and no longer');

# --- an encoding that is not UTF-8

sql("CREATE DATABASE latin1 ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
$node->safe_psql('latin1', 'CREATE EXTENSION idempotency');
subscribe($node, $receiver, '/ok/latin1', db => 'latin1');
subscribe($node, $receiver, '/ok/latin1cloud', db => 'latin1', format => "'cloudevents'");
$node->safe_psql('latin1', q(
	SET client_encoding = 'UTF8';
	SELECT outbox_enqueue('größe', '{"n": 1, "text": "Größe"}', key => 'Größe')));
$receiver->wait_for($_, events => 1) for qw(latin1 latin1cloud);
($event) = $receiver->requests('latin1');
is($event->{utf8}, JSON::PP::true, 'a LATIN1 database sends UTF-8');
is($event->{data}{text}, "Gr\x{f6}\x{df}e", 'the payload is converted');
is($event->{type}, "gr\x{f6}\x{df}e", 'the topic is converted');
is($event->{verified}, JSON::PP::true, 'it is what was converted that is signed');
($event) = $receiver->requests('latin1cloud');
is($event->{headers}{'ce-subject'}, 'Gr%C3%B6%C3%9Fe', 'the key is converted');
is($event->{verified}, JSON::PP::true, 'and signed as CloudEvents, too');

done_testing();
