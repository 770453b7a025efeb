# The server's log tells which worker starts, exits and fails, and why a
# subscription gets no more events; and it does not grow without limit.  If this
# fails, an operator cannot find a cause, or the disk fills with one message.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant {
	BURST => 10,		# messages that differ in numbers only, in a minute
	MINUTES => 2,		# the longest duration of the test
	DEATHS => 300,
};

my $receiver = Receiver->start;
my $node = start_server('worker_log', conf => "idempotency.sweep_interval = 20ms\nlog_statement = none");

sub lines
{
	my ($pattern) = @_;
	my @lines = grep { /$pattern/ } split(/\n/, slurp_file($node->logfile));
	return scalar @lines;
}

sub of_worker
{
	my ($kind, $db) = @_;
	return qr/idempotency $kind of database "$db"/;
}

# --- workers start and exit

wait_for_workers($node);
ok($node->wait_for_log(qr/LOG:  idempotency launcher has started/), 'the launcher says that it is there');
ok($node->wait_for_log(qr/LOG:  ${\of_worker($_, 'postgres')} has started/), "so does the $_") for qw(relay sweeper);
terminate_worker($node, 'relay');
ok($node->wait_for_log(qr/FATAL:  terminating background worker.*\n.*CONTEXT:  ${\of_worker('relay', 'postgres')}/),
	'one that is ended says who it was');
wait_until($node, 'SELECT true', 'the server goes on');
is(lines(qr/LOG:  ${\of_worker('relay', 'postgres')} has started/), 2, 'and the next one that it is there');
alter_system('idempotency.relays', 2);
$node->poll_query_until('postgres', q(SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'idempotency relay'));
alter_system('idempotency.relays', 1);
ok($node->wait_for_log(qr/LOG:  ${\of_worker('relay', 'postgres')} ends because it is one more than idempotency.relays/),
	'one that leaves by itself says why');

# --- subscriptions

subscribe($node, $receiver, '/gone/gone', topics => "'{gone}'");
sql(q(SELECT count(outbox_enqueue('gone', '{}')) FROM generate_series(1, 20)));
ok($node->wait_for_log(qr/LOG:  subscription "gone" is disabled: the endpoint answered 410 Gone/),
	'a subscription whose endpoint wants no more');
wait_for_pass($node);
is(lines(qr/subscription "gone" is disabled/), 1, 'is disabled once');

my $home = sql('SELECT system_identifier FROM outbox_home');
sql('UPDATE outbox_home SET system_identifier = 1; SELECT outbox_wake()');
ok($node->wait_for_log(qr/WARNING:  outbox subscriptions are held.*\n.*HINT.*\n.*CONTEXT:  ${\of_worker('relay', 'postgres')}/),
	'a copy says which database is held');
sql("UPDATE outbox_home SET system_identifier = $home; SELECT outbox_wake()");
ok($node->wait_for_log(qr/LOG:  outbox subscriptions are not held any more/), 'and when it is not any more');

# --- failures of many events

subscribe($node, $receiver, '/refuse/strict', topics => "'{strict}'", retry_schedule => "'{0 s}'");
sql("SELECT count(outbox_enqueue('strict', '{}')) FROM generate_series(1, @{[ DEATHS ]})");
wait_until($node, "SELECT dead = @{[ DEATHS ]} FROM outbox_subscriptions WHERE name = 'strict'", 'many events die');
my $deaths = lines(qr/LOG:  event \d+ is dead for subscription "strict" after attempt 1: answered 422/);
cmp_ok($deaths, '>=', BURST, 'the log tells of some of them');
cmp_ok($deaths, '<=', BURST + MINUTES, 'and not of all');

# --- a step that fails again and again

sql('ALTER TABLE stock_ring RENAME COLUMN closed_at TO lost');
ok($node->wait_for_log(qr/ERROR:  column ring.closed_at does not exist(\n|.)*CONTEXT:(\n|.)*${\of_worker('sweeper', 'postgres')}/),
	'a module that cannot be swept');
for my $round (1 .. 5)
{
	sql("SELECT idem_claim('key', ttl => '1 ms')");
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem_key');
}
cmp_ok(lines(qr/ERROR:  column ring.closed_at does not exist/), '<=', BURST + MINUTES,
	'does not keep the sweeper from the others, and does not fill the log');
sql('ALTER TABLE stock_ring RENAME COLUMN lost TO closed_at');

# --- a relay that cannot write again and again

sql('CREATE DATABASE broken');
$node->safe_psql('broken', 'CREATE EXTENSION idempotency');
subscribe($node, $receiver, '/switch/broken', db => 'broken', retry_schedule => "'{0 s,10 ms}'");
$receiver->switch('broken', 'fail');
$node->safe_psql('broken', 'ALTER TABLE outbox_delivery ADD CONSTRAINT broken CHECK (subscription < 0)');
$node->safe_psql('broken', "SELECT outbox_enqueue('t', '{\"n\": 1, \"card\": \"@{[ PLANTED ]}\"}')");
ok($node->wait_for_log(qr/WARNING:  subscription "broken" is stuck: .* violates check constraint "broken"/),
	'a relay that cannot write says what is wrong');
ok($node->log_contains(qr/violates check constraint "broken"\n(?:(?!.*(?:LOG|WARNING|ERROR):).*\n)*.*CONTEXT:.*${\of_worker('relay', 'broken')}/),
	'and who it is');
is(lines(qr/Failing row|@{[ PLANTED ]}/), 0, 'but does not show the row');
$node->safe_psql('broken', 'ALTER TABLE outbox_delivery DROP CONSTRAINT broken');
$receiver->switch('broken', 'ok');
sql('CREATE DATABASE copy TEMPLATE broken');
$node->poll_query_until('broken',
	'SELECT position = last_value AND waiting = 0 FROM outbox_subscriptions, outbox_position_seq');
is(($receiver->requests('broken'))[-1]{status}, 200, 'once it is mended it goes on');
is(lines(qr/WARNING: .* violates check constraint "broken"/), 1, 'and has said once what was wrong');

# --- a database that accepts no connections

sql(q(UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'copy'));	# as a DROP that failed leaves it
sql(q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'copy'));
wait_for_no_workers($node, 'copy');
sql('CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION idempotency');
wait_for_workers($node, 'other');
is(lines(qr/cannot connect to invalid database/), 0, 'an invalid database is left alone');

done_testing();
