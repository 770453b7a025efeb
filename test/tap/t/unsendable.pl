# An event that cannot be sent is refused, or becomes a dead letter, and stops
# no other.  If this fails, one bad row ends the relay again and again, and no
# subscription of the database gets anything any more.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('unsendable');
my $witnessed = 0;

# Does an event that is enqueued after this command arrive, from the same relay?
sub survives
{
	my ($db, $what, $setup, $command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $pid = worker_pid($node, 'relay', $db);

	$witnessed++;
	$node->psql($db, "$setup; $command");
	$node->safe_psql($db, "SELECT outbox_enqueue('witness', '{\"n\": $witnessed}')");
	my $arrived = $node->poll_query_until($db,
		'SELECT bool_and(position = last_value) FROM outbox_subscriptions, outbox_position_seq');
	my ($last) = ($receiver->requests($db))[-1];
	ok($arrived && $last->{data}{n} == $witnessed && worker_pid($node, 'relay', $db) == $pid, $what);
	return;
}

my %encodings = (windows => 'WIN1252', unchecked => 'SQL_ASCII');
for my $db (sort keys %encodings)
{
	my $encoding = $encodings{$db};
	my $setup = "SET client_encoding = '$encoding'";

	sql("CREATE DATABASE $db ENCODING '$encoding' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($db, 'CREATE EXTENSION idempotency');
	subscribe($node, $receiver, "/ok/$db", db => $db);
	survives($db, "$encoding: $_->[0]", $setup, $_->[1]) for (
		[ 'a payload that has no UTF-8 form', q(SELECT outbox_enqueue('t', to_jsonb(E'\x81'::text))) ],
		[ 'the same in a plain INSERT', q(INSERT INTO outbox_log (topic, payload) VALUES ('t', to_jsonb(E'\x81'::text))) ],
		[ 'a key', q(INSERT INTO outbox_log (topic, payload, key) VALUES ('t', '{}', E'\x81')) ],
		[ 'a type', q(INSERT INTO outbox_log (topic, payload, type) VALUES ('t', '{}', E'\x81')) ],
		[ 'a topic', q(INSERT INTO outbox_log (topic, payload) VALUES (E'\x81', '{}')) ]);
}

subscribe($node, $receiver, '/ok/postgres');
survives('postgres', $_->[0], 'SET client_min_messages = error',
	"INSERT INTO outbox_log (topic, payload, headers) VALUES ('t', '{}', '$_->[1]')") for (
	[ 'headers that are no object', '[1]' ],
	[ 'headers that are a string', '"a"' ],
	[ 'a header without a value', '{"a": null}' ],
	[ 'a header that is an object', '{"a": {"b": 1}}' ],
	[ 'a header with a line end', '{"a": "b\r\nc: d"}' ],
	[ 'a header without a name', '{"": "a"}' ]);
is(scalar(grep { $_->{headers}{c} } $receiver->requests('postgres')), 0,
	'no header was smuggled in');

my %large = (
	'a payload of 20 MB' => q(to_jsonb(repeat(E'\x01', 20000000))),
	'a small payload that is large as text' => q((('[' || repeat('1e131071,', 10000) || '1]')::jsonb)),
);
for my $what (sort keys %large)
{
	survives('postgres', $what, 'SET client_min_messages = error', "SELECT outbox_enqueue('t', $large{$what})");
	is(error_code($node, 'postgres', "SELECT outbox_enqueue('t', $large{$what})"), '54000',
		"$what is refused");
}

# Rows of version 0.2.0, which limited only the jsonb: more text than a relay
# sends, and more than can exist.
my $checks = sql(q(
	SELECT string_agg(format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname), '; ')
	FROM pg_constraint
	WHERE conrelid::regclass::text ~ '^outbox_log_' AND pg_get_constraintdef(oid) ~ 'outbox_check_event'));
sql($checks);
my $segment = sql(q(
	SELECT outbox_enqueue('segment', '{}');
	SELECT tableoid::regclass FROM (
		SELECT tableoid, position FROM outbox_log_0
		UNION ALL SELECT tableoid, position FROM outbox_log_1
		UNION ALL SELECT tableoid, position FROM outbox_log_2) e
	ORDER BY position DESC LIMIT 1)) =~ s/.*\n//sr;
subscribe($node, $receiver, '/ok/oversized', topics => q('{oversized}'), retry_schedule => "'{0 s}'");
for my $numbers (3000, 20000)
{
	survives('postgres', "$numbers long numbers that are in the log", 'SET client_min_messages = error',
		qq(BEGIN;
		SELECT outbox_enqueue('oversized', '{}') AS position \\gset
		UPDATE $segment SET payload = ('[' || repeat('1e131071,', $numbers) || '1]')::jsonb
			WHERE position = :position;
		COMMIT));
	is(sql(q(
			SELECT last_error, count(*) FROM outbox_dead WHERE subscription = 'oversized' GROUP BY 1)),
		'the payload is too large|' . ($numbers == 3000 ? 1 : 2), 'are dead letters');
}
is(scalar($receiver->requests('oversized')), 0, 'and nothing of them is sent');
sql(q(SELECT outbox_unsubscribe('oversized')));

# Values that a dead letter cannot have either, and one that it can: all but
# this one are sent again.
sql(join(';', map { "ALTER TABLE $segment ALTER $_ DROP NOT NULL" } qw(topic payload created_at))
	. "; ALTER TABLE $segment DROP CONSTRAINT outbox_log_created_at_check");
subscribe($node, $receiver, '/ok/invalid', topics => q('{invalid,*}'));
for my $change ('payload = NULL', 'topic = NULL', 'created_at = NULL', q(created_at = 'infinity'), q(key = repeat('k', 300)))
{
	survives('postgres', "$change in the log", 'SET client_min_messages = error',
		qq(BEGIN;
		SELECT outbox_enqueue('invalid', '{}') AS position \\gset
		UPDATE $segment SET $change WHERE position = :position;
		SELECT count(lag) FROM outbox_subscriptions;
		COMMIT));
}
is(sql(q(SELECT string_agg(last_error, ', ' ORDER BY position) FROM outbox_dead WHERE subscription = 'invalid')),
	join(', ', map { qq(column "$_" has no valid value) } qw(payload created_at created_at key)), 'are dead letters');
is(sql(q(SELECT outbox_redrive('invalid'))), '3', 'those that can be sent are sent again');
is(sql(q(SELECT outbox_discard('invalid'), outbox_unsubscribe('invalid'))), '1|', 'the other one can be discarded');

# What an owner has written into the table directly, after dropping the
# constraint that excludes it.
is(error_code($node, 'postgres', "UPDATE outbox_subscription SET secret = 'whsec_none'"), '22023',
	'a secret that cannot sign is refused');
for my $change (q(secret = 'whsec_none'), q(format = 'x'), 'max_in_flight = 0', 'partitions = 0', q(state = 'x'), q(url = 'x'))
{
	my ($code, $out, $error) = $node->psql('postgres', "UPDATE outbox_subscription SET $change");
	ok($code == 3 && $error =~ /ERROR/ && $error !~ /whsec_P/, "$change is refused, and no secret quoted");
}
sql('ALTER TABLE outbox_subscription DROP CONSTRAINT outbox_subscription_row_check');
for my $broken (
	[ 'secret', "secret = 'whsec_none'", "the subscription's secret or signing key cannot sign" ],
	[ 'header', q(headers = '{"a": "b\r\nc: d"}'), 'a header has a control character' ])
{
	my ($name, $change, $error) = @$broken;

	subscribe($node, $receiver, "/ok/$name", retry_schedule => "'{0 s}'");
	sql("UPDATE outbox_subscription SET $change WHERE name = '$name'; SELECT outbox_wake()");
	wait_for_pass($node);
	survives('postgres', "a $name that cannot be sent", 'SELECT 1', 'SELECT 1');
	is(sql("SELECT DISTINCT last_error FROM outbox_dead WHERE subscription = '$name'"),
		$error, 'is what its dead letters say');
	is(scalar($receiver->requests($name)), 0, 'and nothing is sent');
	sql("SELECT outbox_unsubscribe('$name')");
}

done_testing();
