# The files of monitoring/ with the real exporters, and a real Prometheus for
# each of them: every series has its value, every alert fires when its condition
# holds, and stops when that is over, every panel of the dashboard has data, and
# docs/operations/prometheus.md names all of them.  If this fails, an operator is not told,
# or is woken for nothing.
#
# A minute takes two seconds here (lib/Prometheus.pm).  What that cannot show, such
# as limits and the times that an alert waits, is in monitoring/alerts_test.yml,
# with which promtool tests the alerts as they are.
#
# PICTURES=DIRECTORY draws the panels there, as they are in docs/pictures. The
# user postgres must be allowed to write to it.
#
# Needs: gnuplot-nox

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Extension;
use IPC::Run ();
use JSON::PP;
use List::Util qw(max);
use Page;
use PostgreSQL::Test::Utils;
use Program;
use Prometheus qw(MINUTE_S MONITORING);
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(sleep time);

use constant { CALM_S => 20, KEYS => 50, KEYS_MB => 4, INTERVAL => '10s', DURATION_S_MAX => 3600 };

sub run_ok
{
	my ($command, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($stdout, $stderr) = run_command($command);
	return ok($? == 0, $what) || diag($stdout, $stderr);
}

# --- the files

my $page = Page->load('operations/prometheus.md');
my $alerts = slurp_file(MONITORING . '/alerts.yml');
my @alerts = $alerts =~ /^ +- alert: (\w+)$/mg;

$page->check_links;
my ($made) = run_command([ 'awk', '-f', MONITORING . '/sql-exporter.awk', MONITORING . '/postgres-exporter.yml' ]);
is("$made\n", slurp_file(MONITORING . '/sql-exporter.yml'), 'sql-exporter.yml is made of postgres-exporter.yml');
run_ok([ qw(promtool check config), MONITORING . '/prometheus.yml' ], 'prometheus.yml');
run_ok([ qw(promtool check rules), MONITORING . '/alerts.yml' ], 'alerts.yml');
run_ok([ qw(promtool test rules), MONITORING . '/alerts_test.yml' ], 'alerts_test.yml');
cmp_ok(scalar(@alerts), '>', 20, 'there are alerts');
my %has_case = map { $_ => 1 } slurp_file(MONITORING . '/alerts_test.yml') =~ /\balertname="(\w+)"/g;
is(join(' ', sort keys %has_case), join(' ', sort @alerts), 'alerts_test.yml has all of them');
is(join(' ', $page->{text} =~ /^\| `(Idempotency\w+)` \|/mg), "@alerts", 'the page has all of them');
for my $field (qw(severity summary description runbook_url))
{
	is(scalar(() = $alerts =~ /^ +$field: \S/mg), scalar(@alerts), "each has a $field");
}
my @runbooks = $alerts =~ m{^ +runbook_url: \S+/docs/(\S+)$}mg;
is(scalar(@runbooks), scalar(@alerts), 'each has a runbook');
# Anchors as PGXN derives them from headings.
sub is_there
{
	my ($page, $anchor) = $_[0] =~ /^(.*)\.html#(.*)$/;
	return grep { s/[^a-zA-Z0-9_:.-]+/./gr eq $anchor } slurp_file("$FindBin::RealBin/../../../docs/$page.md") =~ /^#+ (.*)$/gm;
}
is(join(' ', grep { !is_there($_) } @runbooks), '', 'which is there');

# --- a server, its databases, and its clients

my $receiver = Receiver->start;
my $node = start_server('monitoring', internal_path => 0, conf => <<EOF);
idempotency.sweep_interval = 100ms
idempotency.stock_items = 16
max_prepared_transactions = 5
log_line_prefix = '%m [%p] %q%u '
EOF

install_extension($node, 'pg_jsonschema');

sub in_shop { return sql($_[0], 'shop') }
sub in_copy { return sql($_[0], 'copy') }

sql('CREATE DATABASE shop');
for my $block ($page->blocks('sql'))
{
	my (undef, $error) = Page::run($node, 'postgres', $block);
	is($error, '', 'a block of the page runs');
}
in_shop('CREATE EXTENSION idempotency');
subscribe($node, $receiver, '/ok/shipping', db => 'shop');
in_shop(q(SELECT idem_claim('key ' || n, request => 'a') FROM generate_series(1, 3) n));
in_shop(q(SELECT idem_claim('key 1', request => 'a'); SELECT idem_claim('key 2', request => 'b')));
in_shop(q(SELECT stock_receive('hat', 10), stock_reserve('hat', 1, 'a'), stock_reserve('hat', 1, 'b'), stock_reserve('hat', 100, 'c'), stock_confirm('a')));
in_shop(q(SELECT outbox_enqueue('t', '{}') FROM generate_series(1, 4)));
$receiver->wait_for('shipping', events => 4);
$node->poll_query_until('shop', q(SELECT idempotency_internal.idempotency_ring_switch('idempotency_internal.stock_ring'))) or die 'no segment is closed';

# The first pass of the sweeper of the copy lasts until this is undone there.
in_shop(<<'EOF');
CREATE TABLE pass_lasts ();
ALTER FUNCTION idempotency_internal.stock_expire(integer) RENAME TO stock_expire_not;
CREATE FUNCTION idempotency_internal.stock_expire(integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = 'pass_lasts') LOOP
		PERFORM pg_catalog.pg_sleep(0.05);
	END LOOP;
	RETURN true;
END
$$;
EOF
my $undo = <<'EOF';
BEGIN;
DROP FUNCTION idempotency_internal.stock_expire(integer);
ALTER FUNCTION idempotency_internal.stock_expire_not(integer) RENAME TO stock_expire;
DROP TABLE pass_lasts;
COMMIT;
EOF
sql('CREATE DATABASE copy TEMPLATE shop');
in_shop($undo);
wait_for_workers($node, $_) for qw(postgres shop copy);

# Endpoints that will fail.
my %switched = (
	failing => [ 'fail', retry_schedule => "'{0 s, 1 h}'" ],
	hanging => [ 'hang', timeout => "'1 s'" ],
	gone => ['gone'],
	refusing => [ 'refuse', retry_schedule => "'{0 s}'" ],
	flaky => ['some-50'],
	slow => [ 'lazy-4000', topics => "'{slow}'" ]);
for my $name (sort keys %switched)
{
	my (undef, %params) = @{ $switched{$name} };
	subscribe($node, $receiver, "/switch/$name", topics => "'{order}'", %params);
}
subscribe($node, $receiver, "/ok/$_", topics => "'{order}'") for qw(good stuck paused);
subscribe($node, $receiver, '/hold/behind', topics => "'{behind}'", timeout => "'5 min'");

my $work = $node->basedir . '/work.sql';
append_to_file($work, <<'EOF');
CREATE TABLE work_ends ();
SELECT stock_receive('hat', 100000), stock_receive('cap', 100);
DO $$
DECLARE
	n int := 0;
	lease record;
BEGIN
	WHILE NOT EXISTS (SELECT FROM work_ends) LOOP
		n := n + 1;
		PERFORM idem_claim('request ' || n, request => 'a');
		PERFORM outbox_enqueue('order', '{}', key => (n % 50)::text);
		PERFORM stock_reserve('hat', 1, 'hat ' || n, ttl => CASE n % 4 WHEN 0 THEN interval '1 s' END);
		PERFORM stock_reserve('cap', 1, 'cap ' || n, wait => n % 20 = 0);
		COMMIT;
		PERFORM idem_claim('request ' || n, request => CASE n % 10 WHEN 0 THEN 'b' ELSE 'a' END);
		lease := idem_claim('job ' || n, lease => '1 min');
		COMMIT;
		PERFORM idem_claim('job ' || n, lease => '1 min', wait => false);
		PERFORM idem_complete('job ' || n, lease.token, '{}');
		PERFORM outbox_enqueue('slow', '{}');
		IF n % 4 > 1 THEN
			PERFORM stock_confirm('hat ' || n);
		ELSIF n % 4 = 1 THEN
			PERFORM stock_cancel('hat ' || n);
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.05);
	END LOOP;
END
$$;
EOF
my $client = Program->start([ qw(psql -Xq -v ON_ERROR_STOP=1 -o /dev/null -f), $work ],
	PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');

# --- the exporters: what they show

my $began = time;
my @watchers = map { Prometheus->start($_, $node, qw(postgres shop copy)) } qw(sql postgres);

# A test on each, which passes as soon as the function returns an empty string.
sub each_watcher
{
	my ($what, $difference) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $watcher (@watchers)
	{
		my $is;
		$watcher->wait_until(sub { ($is = $difference->($watcher)) eq '' });
		is($is, '', "$watcher->{exporter}-exporter: $what");
	}
	return;
}

my %expected;

# Do these alerts fire, or have they since a time?
sub fires
{
	my ($since, @names) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $name (@names)
	{
		$expected{"Idempotency$name"} = 1;
		each_watcher("$name fires", sub {
				return (grep { $_ eq "Idempotency$name" } $_[0]->fired_since($since)) ? '' : 'it does not';
			});
	}
	return;
}

sub is_silent
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	each_watcher("no alert fires $when", sub { join(' ', $_[0]->firing) });
	return;
}

fires($began, 'SubscriptionHeld');
each_watcher('a worker without a success counts from its start', sub {
		my $value = $_[0]->value('time() - idempotency_worker_last_success_timestamp_seconds{datname="copy",kind="sweeper"}');
		return $value ne '' && $value < DURATION_S_MAX ? '' : "it is '$value'";
	});
is(in_copy(q(SELECT count(*), count(last_success_at) FROM idempotency_workers WHERE kind = 'sweeper')), '1|0', 'it has still had none');
in_copy($undo);
in_copy('SELECT outbox_adopt()');
is_silent('when the copy is adopted');
my $quiet = time;

my %shop = (
	'idempotency_claims_total{answer="claimed"}' => 3,
	'idempotency_claims_total{answer="replayed"}' => 1,
	'idempotency_claims_total{answer="mismatch"}' => 1,
	'idempotency_keys{state="completed"}' => 3,
	'idempotency_stock_reservations_total{outcome="reserved"}' => 2,
	'idempotency_stock_reservations_total{outcome="insufficient"}' => 1,
	'idempotency_stock_settlements_total{outcome="confirmed"}' => 1,
	'idempotency_stock_counters_used{}' => 1,
	'idempotency_stock_counters_max{}' => 16,
	'idempotency_outbox_subscription_delivered_events_total{subscription="shipping"}' => 4,
	'idempotency_outbox_requests_total{answer="2xx"}' => 4,
	'idempotency_outbox_request_duration_seconds_count{subscription="shipping"}' => 4,
	'idempotency_outbox_delivery_duration_seconds_bucket{le="+Inf"}' => 4,
	'sum(idempotency_segment_state{ring="idem_key"} == 1)' => 1,
	'count(time() - idempotency_segment_opened_timestamp_seconds{ring="stock_history"} < 3600)' => 2,
	'count(time() - idempotency_segment_closed_timestamp_seconds{segment="stock_history_0"} < 3600)' => 1,
	'count(idempotency_segment_closed_timestamp_seconds{})' => 1,
	'count(idempotency_outbox_request_duration_seconds_bucket{le="0.005"})' => 1);
for my $expression (sort keys %shop)
{
	my $in_shop = $expression =~ s/\{/{datname="shop",/r;
	each_watcher("$expression of a database", sub {
			my $value = $_[0]->value($in_shop);
			return $value eq $shop{$expression} ? '' : "it is $value";
		});
}

my ($series_table) = $page->{text} =~ /^## Series$(.*?)^## /ms;
my %documented = $series_table =~ /^\| `(\w+)` \| ([^|]*)\|/mg;
$_ = join(' ', sort 'datname', /`(\w+)`/g) for values %documented;
cmp_ok(scalar(keys %documented), '>', 30, 'the page has series');

# Labels that Prometheus and the exporters add.
my $added = qr/^(?:__name__|job|instance|server|driver|host|database|user|sql_job|le)$/;

each_watcher('the series of the page with their labels, and no others', sub {
		my %seen;
		for my $series ($_[0]->series('{__name__=~"idempotency.*"}'))
		{
			my $name = $series->{metric}{__name__} =~ s/_seconds\K_(?:bucket|sum|count)$//r;
			$seen{$name} = join(' ', sort grep { !/$added/ } keys %{ $series->{metric} });
		}
		return join(' ', grep { ($seen{$_} // '') ne ($documented{$_} // '') } sort keys %{ { %seen, %documented } });
	});
each_watcher('all databases', sub {
		my @databases = sort map { $_->{metric}{datname} } $_[0]->series('count by (datname) (idempotency_check_state)');
		return "@databases" eq 'copy postgres shop' ? '' : "@databases";
	});
my $metrics = join("\n", grep { /idempotency/ } split /\n/, $watchers[1]->exported) . "\n";
IPC::Run::run([qw(promtool check metrics)], '<', \$metrics, '>', \my $findings, '2>&1');
is($findings, '', 'the names follow the rules of Prometheus');

# As long as ten minutes.
sleep 0.5 while time < $quiet + 10 * MINUTE_S;
each_watcher('meanwhile no alert has fired', sub { join(' ', $_[0]->fired_since($quiet)) });

# --- exporters that fail

my $since = time;
sql(q(ALTER ROLE prometheus NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'prometheus'));
fires($since, 'ExporterFails');
sql('ALTER ROLE prometheus LOGIN');
is_silent('when the exporter can connect');
$since = time;
$_->stop_exporter for @watchers;
fires($since, 'NoData');
$_->start_exporter for @watchers;
is_silent('when the exporter runs');

# --- trouble, and its end

my $reader;

# Random, since it is compressed.
sub long_json { return "to_jsonb((SELECT string_agg(md5(random()::text), '') FROM generate_series(1, $_[0])))" }
my $event = "SELECT outbox_enqueue('t', @{[ long_json(25000) ]})";

# Each has alerts, what makes them fire, and what ends that.
# A prepared transaction, which comes later, delays that keys are forgotten.
my @trouble = (
	[ ['KeysEvicted'],
		sub {
			alter_system('idempotency.keys_max_size', KEYS_MB);
			in_shop("SELECT count(idem_complete(key, (idem_claim(key, lease => '1 min')).token, @{[ long_json(500) ]}))
				FROM (SELECT '$_ ' || n AS key FROM generate_series(1, @{[ KEYS ]}) n) k") for 1 .. 20;
			$node->poll_query_until('shop', 'SELECT evicted > 0 FROM idem_stats') or die 'no key is forgotten';
		},
		sub { alter_system('idempotency.keys_max_size', 'DEFAULT') } ],
	[ [qw(SubscriptionFailing SubscriptionDisabled DeadLetters RequestsFail DeliverySlow)],
		sub { $receiver->switch($_, $switched{$_}[0]) for sort keys %switched },
		sub {
			$receiver->heal;
			sql(q(SELECT outbox_resume('gone'), outbox_discard('refusing'), outbox_retry(name) FROM outbox_subscriptions));
		} ],
	[ ['SubscriptionPaused'], sub { sql(q(SELECT outbox_pause('paused'))) }, sub { sql(q(SELECT outbox_resume('paused'))) } ],
	[ ['SubscriptionStuck'],
		sub {
			sql(q(SELECT 'ALTER TABLE idempotency_internal.outbox_partition ADD CONSTRAINT bad CHECK (subscription <> ' || id || ') NOT VALID'
				FROM idempotency_internal.outbox_subscription WHERE name = 'stuck' \gexec));
		},
		sub { sql(q(ALTER TABLE idempotency_internal.outbox_partition DROP CONSTRAINT bad; SELECT outbox_resume('stuck'))) } ],
	[ ['SubscriptionBehind'], sub { sql(q(SELECT outbox_enqueue('behind', '{}'))) }, sub { $receiver->release('behind') } ],
	[ [qw(LogLarge EventsLost)],
		sub {
			alter_system('idempotency.outbox_keep_size', "'1MB'");
			$_->(q(SELECT outbox_pause('shipping'))) for \&in_shop, \&in_copy;
			in_copy($event);
			in_shop($event) for 1 .. 10;
		},
		sub {
			alter_system('idempotency.outbox_keep_size', 'DEFAULT');
			$_->(q(SELECT outbox_resume('shipping'))) for \&in_shop, \&in_copy;
			sql('SELECT outbox_acknowledge_lost(name) FROM outbox_subscriptions', $_) for qw(postgres shop copy);
		} ],
	[ [qw(PreparedTransactionOld StockCountersFull)],
		sub { in_copy(q(BEGIN; SELECT stock_receive('item ' || n, 1) FROM generate_series(1, 9) n; PREPARE TRANSACTION 'old')) },
		sub { in_copy(q(ROLLBACK PREPARED 'old')) } ],
	[ ['CheckError'],
		sub { in_shop(q(CREATE EXTENSION pg_jsonschema CASCADE; SELECT outbox_topic('t', '{}'); DROP EXTENSION pg_jsonschema)) },
		sub { in_shop(q(SELECT outbox_topic('t'))) } ],
	[ ['CheckWarning'],
		sub { alter_system('idempotency.databases', q('postgres, shop, copy, nowhere')) },
		sub { alter_system('idempotency.databases', 'DEFAULT') } ],
	[ [qw(WorkerErrors WorkerStalled ReservationsOverdue)],
		sub {
			sql('ALTER FUNCTION idempotency_internal.stock_expire(integer) RENAME TO stock_expire_not');
			sql(q(SELECT stock_reserve('hat', 1, 'late');
				UPDATE idempotency_internal.stock_hold SET expires_at = now() - interval '2 min' WHERE reservation = 'late'));
		},
		sub { sql('ALTER FUNCTION idempotency_internal.stock_expire_not(integer) RENAME TO stock_expire; SELECT pg_reload_conf()') } ],
	[ ['WorkerRestarts'],
		sub {
			for (1 .. 5)
			{
				terminate_worker($node, 'relay', 'copy');
				sql('SELECT pg_reload_conf()');
			}
		},
		sub { } ],
	[ ['LeaseOverdue'], sub { in_shop(q(SELECT idem_claim('left', lease => '1 s'))) }, sub { in_shop(q(SELECT idem_forget('left'))) } ],
	[ ['TableNotEmptied'],
		sub {
			$reader = session($node, 'copy');
			$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idem_key');
			in_copy(q(SELECT idem_claim('k'); SELECT idempotency_internal.idem_switch()));
			$node->poll_query_until('copy', q(SELECT count(*) > 0 FROM idempotency_segments WHERE name LIKE 'idem_key%' AND state IN ('old', 'retired')));
			in_copy(q(UPDATE idempotency_internal.idem_ring SET state = 'retired', closed_at = now() - interval '11 min',
				quiet_xid = pg_current_xact_id() WHERE state IN ('old', 'retired')));
		},
		sub { finish($reader, 'COMMIT') } ]);

sleep(CALM_S) if $ENV{PICTURES};
$since = time;
$_->[1]->() for @trouble;

# The exporters show histograms and counters in different ways. Other series are
# the same, so one exporter is enough for the rest. It is the one whose scrapes do
# not wait for queries, so that a slow machine does not matter.
fires($since, qw(RequestsFail DeliverySlow));
pop(@watchers)->stop;
fires($since, @{ $_->[0] }) for @trouble;
$_->[2]->() for reverse @trouble;
is_silent('when all is mended');

# Tables have been closed and emptied meanwhile.
each_watcher('the tables that are closed now, and no others', sub {
		my $are = 0;
		$are += sql('SELECT count(closed_at) FROM idempotency_segments', $_) for qw(postgres shop copy);
		my $value = $_[0]->value('count(idempotency_segment_closed_timestamp_seconds)');
		return $value eq $are ? '' : "$value instead of $are";
	});

$since = time;
alter_system('idempotency.relays', 8);
fires($since, 'WorkersMissing');
alter_system('idempotency.relays', 'DEFAULT');
is_silent('when there are enough workers');
is(join(' ', sort keys %expected), join(' ', sort @alerts), 'each alert has been made to fire');

# --- the dashboard

my $dashboard = decode_json(slurp_file(MONITORING . '/dashboard.json'));
is(scalar(@{ $dashboard->{panels} }), 10, 'the dashboard has ten panels');
for my $panel (@{ $dashboard->{panels} })
{
	like($page->{text}, qr/^!\[\Q$panel->{title}\E\]\(\.\.\/pictures\/panel-$panel->{id}\.svg\)$/m, "a picture of it: $panel->{title}");
	for my $target (@{ $panel->{targets} })
	{
		my $expression = $target->{expr} =~ s/\$(?:instance|database)/.*/gr =~ s/\$__rate_interval/@{[ INTERVAL ]}/gr;
		my @values;
		each_watcher("$panel->{title}: $target->{legendFormat}", sub {
				my $data = $_[0]->ask('query_range', query => $expression, start => $began, end => time, step => 1);
				@values = map { $_->[1] } map { @{ $_->{values} } } @{ $data->{result} };
				return @values ? '' : 'no data';
			});
		cmp_ok(max(0, grep { /\d/ } @values), '<', DURATION_S_MAX, 'no curve hides the others')
		  if ($panel->{fieldConfig}{defaults}{unit} // '') eq 's';
	}
}
my $pictures = $ENV{PICTURES} // PostgreSQL::Test::Utils::tempdir;
run_ok([ MONITORING . '/draw', $watchers[0]->address, $pictures, int(time - $began), INTERVAL ], 'the panels can be drawn');
is(scalar(grep { -s } glob("$pictures/panel-*.svg")), 10, 'all of them');

unlike(slurp_file($node->logfile), qr/\] prometheus (?:WARNING|ERROR|PANIC): /, 'no query of an exporter has failed');
sql('INSERT INTO work_ends DEFAULT VALUES');
ok($client->wait_for_end, 'the client ends');

done_testing();
