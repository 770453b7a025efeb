# Secrets, headers, payloads, answers and notes are in no log of the server and
# in nothing that pg_monitor can read, whatever fails, and however much is
# logged.  If this fails, readers of logs or statistics can forge webhooks, use
# the credentials of a customer's endpoint, or read events.
#
# All of them contain one mark, which is searched at the end.  test/run
# searches it in the logs of all other tests, too.
#
# Needs: docs/recipes/node_modules

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use JSON::PP;
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;
use Tls;

use constant MARK => PLANTED;

my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/untrusted");
my $endpoints = Program->start([ 'node', "$FindBin::RealBin/../programs/echo.js", "$dir/untrusted" ]);
my (undef, $port, $tls_port, @endpoints) = split(/ /, $endpoints->line('ports'));

# Statements of clients may contain secrets, so none is logged, except those
# with parameters below.
my $node = start_server('secrets', conf => <<'EOF');
shared_preload_libraries = 'idempotency, pg_stat_statements'
pg_stat_statements.track = all
log_statement = none
log_min_messages = debug5
log_error_verbosity = verbose
log_min_error_statement = panic
idempotency.sweep_interval = 200ms
idempotency.stock_compact_after = 2
idempotency.stock_archive_topic = 'archive'
idempotency.stock_events = on
EOF

sub subscribe_echo
{
	my ($name, $host, $more) = @_;
	return sql("SELECT outbox_subscribe('$name', '$host/$name?token=@{[ MARK ]}',"
		  . " secret => '@{[ planted_secret() ]}', headers => '{\"Authorization\": \"Bearer @{[ MARK ]}\"}',"
		  . " timeout => '500 ms', max_in_flight => 2 $more)");
}

# Does a command fail?  Its output is for the client only.
sub fails
{
	my ($sql) = @_;
	return error_code($node, 'postgres', "SET client_min_messages = error; $sql");
}

# --- deliveries, failures, dead letters, an endpoint that is down

sql('CREATE EXTENSION pg_stat_statements');
subscribe_echo($_, "http://127.0.0.1:$port", ", topics => '{event}', retry_schedule => '{0 s,10 ms}'") for @endpoints;
subscribe_echo('tls', "https://127.0.0.1:$tls_port", ", topics => '{event}', retry_schedule => '{0 s,10 ms}'");
sql("SELECT outbox_subscribe('absent', 'http://127.0.0.1:9/@{[ MARK ]}', topics => '{event}', retry_schedule => '{0 s}')");
sql("SELECT outbox_subscribe('refused', 'http://192.168.0.1/@{[ MARK ]}', topics => '{event}', retry_schedule => '{0 s}')");
subscribe_echo('fail/down', "http://127.0.0.1:$port", ", topics => '{many}', retry_schedule => '{0 s,1 h}'");

my $event = q(outbox_enqueue('%s', '{"card": "%s"}', headers => '{"X-Card": "%s"}'));
sql('SELECT ' . sprintf($event, 'event', MARK, MARK));
sql('SELECT count(' . sprintf($event, 'many', MARK, MARK) . ') FROM generate_series(1, 30)');
my $dead = @endpoints + 3 - 2;		# one accepts, one answers 410
wait_until($node, "SELECT count(*) = $dead FROM outbox_dead", 'every way to fail ends as a dead letter');
wait_until($node, "SELECT state = 'failing' FROM outbox_subscriptions WHERE name = 'fail/down'", 'an endpoint is down');
wait_until($node, "SELECT state = 'disabled' FROM outbox_subscriptions WHERE name = 'gone'", 'another wants no more');
wait_until($node, "SELECT delivered = 1 FROM outbox_subscriptions WHERE name = 'ok'", 'one is well');
sql("SELECT outbox_rotate_secret('ok', secret => '@{[ planted_secret() ]}')");
sql("SELECT outbox_alter('ok', headers => '{\"Authorization\": \"Basic @{[ MARK ]}\"}')");
sql("SELECT outbox_redrive('body'), outbox_replay('ok', from_position => 0)");
wait_until($node, "SELECT delivered = 2 FROM outbox_subscriptions WHERE name = 'ok'", 'it gets its event again');
wait_until($node, "SELECT count(*) = $dead FROM outbox_dead", 'and the other fails again');

# --- claims and stock

sql(<<"END");
SELECT token FROM idem_claim('k', request => '@{[ MARK ]}', lease => '1 min') \\gset
SELECT idem_complete('k', :token, '{"card": "@{[ MARK ]}"}');
SELECT idem_claim('k', request => '@{[ MARK ]} 2');
SELECT token FROM idem_claim('f', lease => '1 min') \\gset
SELECT idem_fail('f', :token, '{"card": "@{[ MARK ]}"}', retry => false);
SELECT stock_receive('hat', 10, note => '@{[ MARK ]}');
SELECT stock_adjust('hat', -1, note => '@{[ MARK ]}');
SELECT stock_reserve('hat', 1, 'r' || n, actor => '@{[ MARK ]}', ttl => '1 h') FROM generate_series(1, 5) n;
SELECT stock_cancel('r1');
END
wait_until($node, 'SELECT count(*) <= 2 FROM stock_log', 'stock is compacted');

# --- refused calls

my $long = q(('%s' || repeat('x', 2000)));
my %refused = (
	q(SELECT outbox_subscribe('a', 'http://127.0.0.1/', secret => 'whsec_%s')) => '22023',
	q(SELECT outbox_subscribe('a', 'http://user:%s@127.0.0.1/')) => '22023',
	q(SELECT outbox_subscribe('a', 'ftp://%s/')) => '22023',
	q(SELECT outbox_subscribe('a', 'http://%s .example/')) => '22023',
	q(SELECT outbox_subscribe('a', 'http://[%s/')) => '22023',
	q(SELECT outbox_subscribe('a', 'http://127.0.0.1/', headers => '{"A": "%s\u0001"}')) => '22023',
	q(SELECT outbox_subscribe('a', 'http://127.0.0.1/', headers => '["%s"]')) => '22023',
	q(SELECT outbox_subscribe('a', 'http://127.0.0.1/', headers => '{"Host": "%s"}')) => '22023',
	"SELECT outbox_subscribe('a', 'http://127.0.0.1/', headers => jsonb_build_object('A', $long))" => '22023',
	q(SELECT outbox_subscribe('ok', 'http://127.0.0.1/%s')) => '42710',
	q(SELECT outbox_alter('ok', url => 'http://a:%s@b/')) => '22023',
	q(SELECT outbox_alter('ok', headers => '{"A": ["%s"]}')) => '22023',
	q(SELECT outbox_rotate_secret('ok', secret => '%s')) => '22023',
	q(SELECT outbox_signature('whsec_%s', 'id', 1, '%s')) => '22023',
	q(SELECT outbox_enqueue('t', '"%s"', headers => '{"A B": "%s"}')) => '22023',
	q(SELECT outbox_enqueue('t', '"%s"', key => '')) => '22023',
	q(INSERT INTO outbox_log (topic, payload, headers) VALUES ('t', '"%s"', '{"webhook-id": "%s"}')) => '22023',
	q(SET idempotency.outbox_payload_max = 1; SELECT outbox_enqueue('t', to_jsonb(repeat('%s', 200000)))) => '54000',
	q(SELECT idem_complete('none', 1, '"%s"')) => 'ID002',
	q(SELECT idem_complete('k', 1, '"%s"')) => 'ID003',
	q(SELECT idem_fail('f', 1, '"%s"')) => 'ID001',
	q(SELECT idem_claim('', request => '%s')) => '22023',
	"SELECT stock_receive('hat', 1, note => $long)" => '22023',
	q(SELECT stock_adjust('hat', -100, note => '%s')) => 'ID006',
	"SELECT stock_reserve('hat', 1, 'r', actor => $long)" => '22023',
	q(SELECT stock_reserve('hat', 2, 'r2', actor => '%s')) => 'ID004');
for my $sql (sort keys %refused)
{
	is(fails($sql =~ s/%s/MARK/ger), $refused{$sql}, "refused: $sql");
}

# --- statements whose values are parameters may be logged

my $client = Program->start([ 'node', "$FindBin::RealBin/../programs/clients.js" ],
	PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => scalar(getpwuid($<)));
for my $query (
	[ 'SET log_min_error_statement = error', [], '' ],
	[ 'SELECT outbox_subscribe($1, $2, secret => $3)', [ 'a', 'http://127.0.0.1/', MARK ], '22023' ],
	[ 'SELECT outbox_rotate_secret($1, secret => $2) IS NULL', [ 'ok', planted_secret() ], 'false' ],
	[ 'SELECT outbox_enqueue($1, $2, headers => $3)', [ 't', '"' . MARK . '"', '{"A B": "' . MARK . '"}' ], '22023' ])
{
	my ($sql, $parameters, $answer) = @$query;
	$client->say(JSON::PP->new->encode([ 'bound', $sql, @$parameters ]));
	is($client->line('bound'), "bound $answer", "parameters: $sql");
}
ok($node->log_contains(qr/STATEMENT:  SELECT outbox_enqueue\(\$1, \$2/), 'and are, without them');

# --- what processes log about themselves

sql("SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency %'");
ok($node->wait_for_log(qr/idempotency relay turn: \d+ total/), 'the relay has logged its memory');

# --- a relay that fails while it holds an event, and one that is killed

sql('ALTER TABLE outbox_delivery ADD CONSTRAINT broken CHECK (subscription < 0) NOT VALID');
sql('SELECT ' . sprintf($event, 'event', MARK, MARK));
ok($node->wait_for_log(qr/violates check constraint "broken"/), 'the relay fails');
sql('ALTER TABLE outbox_delivery DROP CONSTRAINT broken');
kill('KILL', worker_pid($node, 'relay'));
$node->poll_query_until('postgres', 'SELECT true');
wait_until($node, "SELECT count(*) = 2 * $dead FROM outbox_dead", 'the next one goes on');

# --- places where the mark could be found

sql('ANALYZE');
is(sql("SELECT count(*) > 0 FROM outbox_attempts WHERE answer LIKE '%@{[ MARK ]}%'"), 't',
	'endpoints have quoted what they were sent');
is(sql("SELECT string_agg(state, ' ' ORDER BY state) FROM (SELECT DISTINCT state FROM outbox_subscriptions) s"),
	'active disabled failing', 'there are subscriptions in every state');

# --- it is found nowhere

# The mark is composed in the query, so that the query does not find itself.
sql(<<'SQL');
CREATE ROLE watcher LOGIN;
GRANT pg_monitor TO watcher;
GRANT CREATE ON SCHEMA public TO watcher;
SET ROLE watcher;
CREATE FUNCTION look(mark text, OUT looked bigint, OUT shown text[]) LANGUAGE plpgsql AS $$
DECLARE
	relation regclass;
	is_there boolean;
BEGIN
	looked := 0;
	FOR relation IN
		SELECT c.oid FROM pg_class c WHERE c.relkind IN ('r', 'v', 'm')
			AND has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
	LOOP
		BEGIN
			EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE t::text LIKE $1)', relation)
				INTO is_there USING '%' || mark || '%';
			looked := looked + 1;
			IF is_there THEN
				shown := shown || relation::text;
			END IF;
		EXCEPTION WHEN insufficient_privilege THEN NULL;
		END;
	END LOOP;
END
$$;
SQL
my ($looked, $shown) = split(/\|/, sql(sprintf(q(SET ROLE watcher; SELECT * FROM look('%s' || '%s')),
	MARK =~ /^(...)(.*)$/)));
cmp_ok($looked, '>', 100, 'pg_monitor looks into everything it may read');
is($shown, '', 'and finds nothing');
is(sql("SET ROLE watcher; SELECT count(*) FROM outbox_dead WHERE last_error <> ''"), 2 * $dead,
	'though there is what went wrong');

$node->stop;
my $log = slurp_file($node->logfile);
like($log, qr/LOG: .*event \d+ is dead for subscription "body"/, 'the log tells what went wrong');
like($log, qr/DEBUG: .*probing the endpoint of subscription/, 'and more than anybody wants to know');
my @lines = grep { index($_, MARK) >= 0 } split(/\n/, $log);
is(join("\n", splice(@lines, 0, 20)), '', 'but nothing that is secret');

done_testing();
