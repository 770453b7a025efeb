# Payloads are checked against the JSON schema of their topic, wherever events
# come from, whoever enqueues them, and as soon as the schema is committed.  If
# this fails, a consumer gets an event that is not as announced, a producer of
# another topic is refused, or a restored copy lacks its topics.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Extension;
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

my $node = start_server('typed');
my $schema = '{"type": "object", "required": ["order"], "properties": {"order": {"type": "integer", "minimum": 1}}}';

sub register
{
	my ($topic, $new) = @_;
	return "SELECT outbox_topic('$topic', " . (defined $new ? "'$new'" : 'NULL') . ')';
}

sub enqueue
{
	my ($payload, $topic) = @_;
	return "SELECT outbox_enqueue('" . ($topic // 'order.placed') . "', '$payload')";
}

# The events of a topic.
sub events
{
	my ($topic, $db) = @_;
	return sql("SELECT count(*) FROM outbox_log WHERE topic = '" . ($topic // 'order.placed') . "'", $db);
}

# The SQLSTATE of a statement in a session, or empty.
sub outcome
{
	my ($session, $statement) = @_;
	$session->query("\\set VERBOSITY sqlstate");
	$session->{stderr} = '';
	$session->query($statement);
	return $session->{stderr} =~ /ERROR: +(\w{5})/ ? $1 : '';
}

# --- the extension is installed, and used

install_extension($node, 'pg_jsonschema');
is(error_code($node, 'postgres', register('order.placed', $schema)), '55000', 'without pg_jsonschema a schema is refused');
my $old = session($node);
is(outcome($old, enqueue('{"order": 0}')), '', 'a session enqueues what will not match');

# Callers need no privilege on the extension that checks.
sql(q(CREATE SCHEMA checks; CREATE EXTENSION pg_jsonschema SCHEMA checks CASCADE;
	REVOKE ALL ON ALL FUNCTIONS IN SCHEMA checks FROM PUBLIC));
is(error_code($node, 'postgres', register('order.placed', '{"type": "nonsense"}')), '22023', 'what is no schema is refused');
isnt(error_code($node, 'postgres', register('order.placed', '{"$ref": "#/$defs/nowhere"}')), '', 'or cannot be used');
is(sql('SELECT count(*) FROM outbox_topics'), '0', 'and not registered');
sql(register('order.placed', $schema));
is(outcome($old, enqueue('{"order": 0}')), '23514', 'which the schema that is registered then refuses');
is(outcome($old, enqueue('{"order": 1}')), '', 'and not what matches');
is(outcome($old, enqueue('{"order": 0}', 'order.paid')), '', 'or is of another topic');
is(outcome($old, enqueue('{"order": 0}', 'order.placed.x')), '', 'even of one that begins likewise');
is(outcome($old, enqueue('{"order": 0}', 'x' x 256)), '22023', 'or of one that is too long');
is(events(), '2', 'what was refused is not in the log');

# --- a session looks for pg_jsonschema while its catalog is locked

sql(register('late', $schema));
my $locker = session($node);
my $late = session($node);
is(outcome($late, enqueue('{}', 'order.paid')), '', 'a session has read the topics');
$locker->query('BEGIN; LOCK pg_catalog.pg_depend');
$late->query("SET statement_timeout = '200 ms'");
is(outcome($late, enqueue('{"order": 1}', 'late')), '57014', 'it cannot check a payload in time');
$locker->query('ROLLBACK');
$late->query('RESET statement_timeout');
is(outcome($late, enqueue('{"order": 1}', 'late')), '', 'but later');
is(outcome($late, enqueue('{"order": 0}', 'late')), '23514', 'as any other session');
is(events('late'), '1', 'what was not checked is not in the log');
$_->quit for $locker, $late;

my ($status, $out, $err) = $node->psql('postgres', enqueue('{"order": "secret"}'));
like($err, qr/ERROR:  payload does not match the schema of topic "order.placed"\nDETAIL:  'secret' is not of type 'integer'\n/,
	'the producer is told which topic, and why');
($status, $out, $err) = $node->psql('postgres', register('many', '{"items": {"type": "integer"}}') . ';'
	  . enqueue('["a", "b", "c", "d", "' . 'e' x 300 . '"]', 'many'));
is(scalar(() = $err =~ /is not of type/g), 3, 'of many reasons, the first three');
sql(register('many', '{"items": {"maxLength": 250}}'));
($status, $out, $err) = $node->psql('postgres', enqueue('["' . "\x{c3}\x{a4}" x 300 . '"]', 'many'));
my ($reason) = $err =~ /DETAIL:  (.*)\n/;
cmp_ok(length($reason), '<=', 200, 'a long reason is cut');
cmp_ok(length($reason), '>', 190, 'but not away');
ok(slurp_file($node->logfile) !~ /'secret' is not/, 'the log does not quote the payload');

# --- whoever enqueues, and however

sql(q(CREATE ROLE shop LOGIN; SELECT idempotency_grant('shop'); CREATE SCHEMA shop AUTHORIZATION shop;
	GRANT INSERT ON outbox_log TO shop;
	SET ROLE shop;
	CREATE FUNCTION shop.jsonb_matches_schema(schema json, instance jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION shop.jsonschema_validation_errors(schema json, instance json) RETURNS text[] LANGUAGE sql AS $$SELECT '{}'::text[]$$;
	CREATE TABLE shop.orders (id integer);
	CREATE FUNCTION shop.placed() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN PERFORM public.outbox_enqueue('order.placed', jsonb_build_object('order', NEW.id)); RETURN NEW; END $$;
	CREATE TRIGGER placed BEFORE INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.placed()));
my $shop = 'SET ROLE shop; SET search_path = shop, pg_catalog, public;';
for my $wrong (
	[ 'by an application, with functions of the same names in its path', enqueue('{"order": 0}') ],
	[ 'by an INSERT into the view', q(INSERT INTO outbox_log (topic, payload) SELECT 'order.placed', jsonb_build_object('order', n) FROM generate_series(2, 0, -1) n) ],
	[ 'by a COPY into the view', qq(COPY outbox_log (topic, payload) FROM STDIN;\norder.placed\t{"order": 5}\norder.placed\t{"order": 0}\n\\.\n) ],
	[ 'by a trigger', 'INSERT INTO orders VALUES (7), (0)' ],
	[ 'by a function in a query', q(SELECT outbox_enqueue('order.placed', '{}') FROM generate_series(1, 2)) ],
	[ 'without SQL NULL for JSON null', enqueue('null') ])
{
	is(error_code($node, 'postgres', "$shop$wrong->[1]"), '23514', "an event is refused $wrong->[0]");
}
is(events(), '2', 'and none of their statements has enqueued another');
is(error_code($node, 'postgres', "$shop INSERT INTO orders VALUES (7), (8)"), '', 'what matches is enqueued');
is(events(), '4', 'as before');

# --- transactions

is(outcome($old, 'BEGIN'), '', 'in a transaction');
is(outcome($old, enqueue('{"order": 2}')), '', 'an event');
is(outcome($old, 'SAVEPOINT s'), '', 'and a savepoint');
is(outcome($old, enqueue('{"order": 0}')), '23514', 'an event is refused');
is(outcome($old, 'ROLLBACK TO s; ' . enqueue('{"order": 3}')), '', 'the transaction goes on');
is(outcome($old, register('order.placed', 'false') . '; ' . enqueue('{"order": 4}')), '23514', 'with another schema of its own');
is(outcome($old, 'ROLLBACK TO s; ' . enqueue('{"order": 5}')), '', 'which is rolled back');
is(error_code($node, 'postgres', enqueue('{"order": 6}')), '', 'and which nobody else has seen');
is(outcome($old, 'COMMIT'), '', 'it commits');
is(events(), '7', 'with three events');

is(outcome($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ; ' . enqueue('{"order": 8}')), '', 'with an older snapshot');
sql(register('order.placed', 'false'));
is(outcome($old, enqueue('{"order": 9}')), '23514', 'what is registered meanwhile is in force at once');
$old->query('ROLLBACK');
is(outcome($old, 'BEGIN; ' . enqueue('{"order": 9}', 'order.paid')), '', 'a transaction holds its locks');
sql(register('order.paid', 'false'));
is(outcome($old, enqueue('{"order": 9}', 'order.paid')), '23514', 'a topic that is new is in force too');
$old->query('ROLLBACK');
sql("SELECT outbox_drop_topic('order.paid')");
is(outcome($old, enqueue('{"order": 9}', 'order.paid')), '', 'and no more when it is dropped');
sql(register('order.placed'));
is(outcome($old, enqueue('"anything"')), '', 'or has no schema any more');

# By other means than the functions.
sql(q(SET session_replication_role = replica; UPDATE outbox_registered_topic SET schema = 'false' WHERE topic = 'order.placed'));
is(outcome($old, enqueue('"anything"')), '23514', 'a replicated change is noticed');
sql('TRUNCATE outbox_registered_topic');
is(outcome($old, enqueue('"anything"')), '', 'and a TRUNCATE');
sql(q(INSERT INTO outbox_registered_topic VALUES ('order.placed', 'false')));
is(outcome($old, enqueue('"anything"')), '23514', 'and an INSERT');
sql(q(DELETE FROM outbox_registered_topic));
is(outcome($old, enqueue('"anything"')), '', 'and a DELETE');

# --- our own events

sql(register('stock.reserved', 'false'));
sql(q(SET idempotency.stock_events = on; SELECT stock_receive('hat', 1), stock_reserve('hat', 1, 'r')));
is(events('stock.reserved'), '1', 'no schema stops the events of the extension');
is(error_code($node, 'postgres', enqueue('{}', 'stock.reserved')), '23514', 'others of the topic it does');
sql("SELECT outbox_drop_topic('stock.reserved')");

# --- restored copies

sql(register('order.placed', $schema));
sql(q(SELECT outbox_topic('order.paid', description => 'money has arrived')));
my $dir = PostgreSQL::Test::Utils::tempdir;
for my $case ([ 'copy', [], '23514' ], [ 'bare', ['--extension=idempotency'], '55000' ])
{
	my ($db, $options, $code) = @$case;

	command_ok([ 'pg_dump', '-Fc', '-f', "$dir/$db", @$options, $node->connstr('postgres') ], "$db: dump");
	sql("CREATE DATABASE $db");
	command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr($db), "$dir/$db" ], "$db: restore");
	is(sql('SELECT string_agg(topic || (schema IS NOT NULL) || coalesce(description, \'\'), \' \' ORDER BY topic) FROM outbox_topics', $db),
		'order.paidfalsemoney has arrived order.placedtrue', "$db: the topics are there");
	is(error_code($node, $db, enqueue('{"order": 0}')), $code, "$db: the schema is in force");
	is(error_code($node, $db, enqueue('{"order": 0}', 'order.paid')), '', "$db: other topics are free");
}

# --- the extension is dropped, and comes back

is(sql(q(SELECT state FROM idempotency_status() WHERE "check" = 'topics')), 'ok', 'the status is good');
sql('DROP EXTENSION pg_jsonschema');
($status, $out, $err) = $node->psql('postgres', enqueue('{"order": 1}'));
like($err, qr/could not check the schema of topic "order.placed"\n.*\nHINT:  Run CREATE EXTENSION pg_jsonschema/, 'no extension, no event');
is(outcome($old, enqueue('{"order": 1}')), '55000', 'likewise in a session that has used it');
is(outcome($old, enqueue('{"order": 1}', 'order.paid')), '', 'topics without a schema are free');
is(sql(q(SELECT state || ' ' || hint FROM idempotency_status() WHERE "check" = 'topics')),
	'error their events are refused; CREATE EXTENSION pg_jsonschema', 'the status says so');
is(outcome($old, register('order.placed')), '', 'the schema can be given up');
is(outcome($old, enqueue('{"order": 1}')), '', 'then events are enqueued');
sql('CREATE EXTENSION pg_jsonschema');
sql(register('order.placed', $schema));
is(outcome($old, enqueue('{"order": 0}')), '23514', 'it comes back');
is(outcome($old, enqueue('{"order": 1}')), '', 'and works');

# A function of the name that is no member of it is not used.
sql(q(ALTER EXTENSION pg_jsonschema DROP FUNCTION jsonb_matches_schema(json, jsonb)));
is(error_code($node, 'postgres', enqueue('{"order": 1}')), '55000', 'only members of the extension are called');

# --- the extension itself is created again

sql('DROP EXTENSION idempotency CASCADE; CREATE EXTENSION idempotency');
is(outcome($old, enqueue('{"order": 0}')), '', 'a new extension has no topics');

$old->quit;
done_testing();
