# Many sessions reserve the same new names at the same time, while the filter of
# names is cleared, built and forgotten, backends are killed, and the server
# crashes; and they reserve cancelled names anew.  If this fails, a name was
# reserved twice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;
use Time::HiRes qw(time sleep);

use constant {
	CLIENTS => 8,
	SECONDS => 6,
};

# The smallest filter, so that it is full again and again.
my $node = start_server('stock_names', conf => <<'EOF');
idempotency.stock_names_memory = 8kB
idempotency.stock_compact_after = 100
idempotency.sweep_interval = 10ms
log_statement = none
EOF
sql(<<'EOF');
SELECT stock_receive('hot', 1000000000), stock_receive('cold', 1000000000);
CREATE SEQUENCE calls;
-- Of five calls that follow each other, often in five sessions, one is the first.
CREATE FUNCTION reserve(OUT name text, OUT answer text) LANGUAGE plpgsql AS $$
BEGIN
	name := 'name ' || nextval('calls') / 5;
	answer := outcome FROM stock_reserve_many('{"hot": 1, "cold": 1}', name);
EXCEPTION WHEN SQLSTATE 'ID005' THEN
	answer := 'closed';
END
$$;
CREATE FUNCTION anew(sku text, name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN outcome FROM stock_reserve(sku, 1, name, anew => true);
EXCEPTION WHEN SQLSTATE 'ID004' OR SQLSTATE 'ID005' THEN
	RETURN 'open';
END
$$;
CREATE TABLE two (name text);
CREATE FUNCTION watch(name text) RETURNS void LANGUAGE sql AS
	'INSERT INTO two SELECT watch.name FROM stock_hold WHERE reservation = watch.name HAVING count(*) > 1';
CREATE FUNCTION known() RETURNS boolean LANGUAGE sql AS 'SELECT complete FROM idempotency_internal.stock_names()';
EOF

my %script = (
	keep => 'SELECT reserve();',
	'confirm' => 'SELECT stock_confirm(name) FROM reserve();',
	cancel => "SELECT name, answer FROM reserve() \\gset\nSELECT stock_cancel(':name');",
	'give up' => "BEGIN;\nSELECT reserve();\nROLLBACK;",
	savepoint => "BEGIN;\nSAVEPOINT a;\nSELECT reserve();\nROLLBACK TO a;\nSELECT reserve();\nCOMMIT;");
# Each of a few names has at most one line at a time.
my %anew = (
	hot => "\\set n random(1, 10)\nSELECT anew('hot', 'again :n');",
	cold => "\\set n random(1, 10)\nSELECT anew('cold', 'again :n');",
	cancel => "\\set n random(1, 10)\nSELECT watch('again :n'), stock_cancel('again :n');",
	reinstate => "\\set n random(1, 10)\nSELECT outcome FROM stock_reinstate('again :n');");
my $folder = PostgreSQL::Test::Utils::tempdir();
append_to_file("$folder/first $_", "$script{$_}\n") for keys %script;
append_to_file("$folder/anew $_", "$anew{$_}\n") for keys %anew;

sub load
{
	my ($kind) = @_;
	return IPC::Run::start([ 'pgbench', '-n', '-c', CLIENTS, '-j', 2, '-T', SECONDS,
			(map { ('-f', $_) } sort glob("'$folder/$kind *'")), $node->connstr('postgres') ], '>', \my $output, '2>', \my $errors);
}

sub twice
{
	return sql(q(SELECT count(*) FROM (
		SELECT FROM stock_history WHERE change = 'reserve' GROUP BY reservation, sku HAVING count(*) > 1) twice));
}

# --- external DML, killed backends

my $load = load('first');
my %seen = (t => 0, f => 0);
my $until = time + SECONDS - 1;
while (time < $until || (!($seen{t} && $seen{f}) && time < $until + 30))
{
	$seen{ sql("UPDATE stock_item SET sku = sku WHERE sku = 'cold'; SELECT known()") }++ if rand() < 0.1;
	sql(q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench' LIMIT 1)) if rand() < 0.02;
	$seen{ sql('SELECT known()') }++;
	sleep(0.02);
}
$load->finish;
cmp_ok($seen{t}, '>', 0, 'at times the filter knew all names');
cmp_ok($seen{f}, '>', 0, 'and at times it did not');
cmp_ok(sql('SELECT last_value FROM calls'), '>', 1000, 'there were many calls');
is(twice(), '0', 'no name was reserved twice');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

# --- a crash in between

$load = load('first');
sleep(SECONDS / 2);
$node->stop('immediate');
$load->finish;
$node->start;
$load = load('first');
my ($first) = sql("SELECT reservation FROM stock_history WHERE change = 'confirm' ORDER BY id LIMIT 1");
is(error_code($node, 'postgres', "SELECT stock_reserve('hot', 1, '$first')"), 'ID005', 'after a crash a name is known');
$load->finish;
is(twice(), '0', 'no name was reserved twice');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

# --- names that are used again

load('anew')->finish;
cmp_ok(sql("SELECT count(*) FROM stock_history WHERE change = 'reinstate'"), '>', 100, 'names were used again, many times');
is(sql('SELECT count(*) FROM two'), '0', 'none of them by two at a time');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');

# --- a filter that is full is reported

sql("SELECT count(stock_reserve('hot', 1, 'one of many ' || i)) FROM generate_series(1, 20000) i");
wait_until($node, 'SELECT known()', 'the sweeper learns the names');
like(sql(q(SELECT state || ': ' || detail FROM idempotency_status() WHERE "check" = 'reservation names')),
	qr/^warning: \d+ of 100 new names are taken for known$/, 'the filter is too small');
$node->append_conf('postgresql.conf', 'idempotency.stock_names_memory = 1MB');
$node->restart;
wait_until($node, 'SELECT known()', 'after a restart the sweeper learns the names');
is(sql(q(SELECT state || ': ' || detail FROM idempotency_status() WHERE "check" = 'reservation names')), 'ok: known', 'it is large enough now');
is(error_code($node, 'postgres', "SELECT stock_reserve('hot', 1, '$first')"), 'ID005', 'and knows the names');

done_testing();
