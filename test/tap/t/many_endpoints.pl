# Many endpoints: most of them work and want few of the events, others fail in
# every way, while events are enqueued, processes are killed and subscriptions
# are altered.  If this fails, an event is lost, invented, overtaken or sent to
# the wrong receiver; or endpoints that fail delay those that work; or something
# remains stuck when all work again.  The delay is measured in long runs only, on
# a machine that does nothing else.
#
# SOAK_SECONDS: how long; GOOD and BAD, the numbers of endpoints; RATE, the
# transactions in a second; SEED; KILLS, a pattern of what is killed or altered.
# SEED repeats what is done, but not in which order it gets there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Havoc;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Program;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

my $seconds = $ENV{SOAK_SECONDS} // 8;
my $good = $ENV{GOOD} // 300;
my $bad = $ENV{BAD} // 40;
my $rate = $ENV{RATE} // 50;
my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

# A zone has about 20 customers; a fifth of the endpoints want all of a zone.
my $zones = max(5, int($good / 20));

# How long it is calm at first.  Delays may be longer from shortly before a kill
# or a change on, and until a relay has read the log for all who follow again.
use constant { CALM_S => 7, BEFORE_S => 2, DELAY_MS_MAX => 2000 };
my $normal_after_s = 4 + $good / 300;

# How many subscriptions are changed at once, and how far they are replayed.
use constant { AT_ONCE => 5, REPLAYED => 200 };

# A relay holds 64 MiB of events, its endpoints, and copies of what is in flight.
use constant MEMORY_KB_MAX => 192 * 1024;

my $arrived = "$PostgreSQL::Test::Utils::tmp_check/many_endpoints_arrived";
my $receiver = Receiver->start($arrived);
my $node = start_server('many_endpoints', conf => <<'EOF');
log_statement = none
track_commit_timestamp = on
idempotency.relays = 2
idempotency.outbox_retention = 0
idempotency.sweep_interval = 200ms
EOF

# What is known of events and subscriptions.
sql(<<'EOF');
CREATE TABLE sent (position bigint PRIMARY KEY, topic text, payload jsonb, key text, later boolean);
CREATE TABLE subscribed (name text, kind text);
EOF

my $producers = Program->start([ 'node', "$FindBin::RealBin/../programs/many_producers.js" ],
	PGHOST => $node->host, PGUSER => scalar(getpwuid($<)), PGDATABASE => 'postgres',
	SEED => $seed, RATE => $rate, CUSTOMERS => $good, ZONES => $zones);
my $havoc = Havoc->new($node, $producers, $seed);

# --- the endpoints

my $customer = "array['zone.' || n % $zones || '.customer.' || n]";
my $zone = "array['zone.' || n % $zones || '.*']";
my $cloudevents = "format => 'cloudevents', batch => 50";

# A schedule that takes longer than all, so that no event dies: a dead letter
# does not block its key.
my $patience = "retry_schedule => '0 s'::interval || array_fill(interval '200 ms', '{20}')"
  . " || array_fill(interval '1 s' * (1 + $seconds / 40), '{79}'), timeout => '2 s'";
# By kind: how many of a hundred, path, topics and other parameters.
my %good = (
	own => [ 76, 'ok', $customer ],
	slow => [ 4, 'lazy-30', $zone, 'max_in_flight => 8' ],
	filtered => [ 4, 'ok', $zone, q(filter => '$.amount > 80') ],
	limited => [ 4, 'ok', $zone, 'rate_limit => 20' ],
	batched => [ 4, 'each-20', $zone, $cloudevents ],
	parts => [ 4, 'lazy-10', $zone, 'partitions => 4' ],
	free => [ 4, 'lazy-30', $zone, 'ordered => false' ],
);
my %bad = (
	hangs => [ 14, 'hang', $zone, "timeout => '5 min', max_in_flight => 256" ],
	greedy => [ 1, 'turns-3', "'{zone.*}'", $patience, 'ordered => false, max_in_flight => 256, partitions => 4' ],
	turns => [ 15, 'turns-3', $zone, $patience ],
	some => [ 10, 'some-30', $zone, $patience ],
	collapses => [ 10, 'collapse', $zone, $patience ],
	busy => [ 5, 'busy-2', $zone, $patience ],
	many => [ 5, 'many-1', $zone, $patience ],
	drips => [ 10, 'drip', $zone, $patience ],
	floods => [ 5, 'flood', $zone, $patience ],
	halves => [ 5, 'half', $zone, $patience ],
	drops => [ 5, 'drop', $zone, $patience ],
	garbage => [ 5, 'garbage', $zone, $patience ],
	dies => [ 5, 'some-50', $zone, "retry_schedule => '{0 s,10 ms}'" ],
	splits => [ 5, 'each-1', $zone, $patience, $cloudevents ],
);

my @names;

# The row in subscribed commits later, so the subscription gets all events that
# commit after it.
sub subscribe_numbers
{
	my ($kind, $from, $to, $path, $topics, @more) = @_;
	my $numbers = "generate_series($from, $to) n";
	my $parameters = join(', ', "'$kind' || n", "'" . $receiver->url("/$path/$kind") . "' || n", "topics => $topics", @more);

	sql("SELECT count(outbox_subscribe($parameters)) FROM $numbers;"
		  . " INSERT INTO subscribed SELECT '$kind' || n, '$kind' FROM $numbers");
	push @names, map { "$kind$_" } $from .. $to;
	return;
}

# Numbers begin anywhere, so that all zones are wanted by some of each kind.
sub subscribe_all
{
	my ($count, %kinds) = @_;

	for my $kind (sort keys %kinds)
	{
		my ($share, @parameters) = @{ $kinds{$kind} };
		my $from = 1 + int(rand($zones));
		subscribe_numbers($kind, $from, $from + max(1, int($count * $share / 100)) - 1, @parameters);
	}
	return;
}

# --- what is killed

my @disturbances;	# [subscription or undef, from, to]
my $most_kb = 0;

sub look_at_memory
{
	for my $pid (split(/\n/, eval { sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency relay'") } // ''))
	{
		my ($kb) = (eval { slurp_file("/proc/$pid/status") } // '') =~ /^RssAnon:\s+(\d+) kB$/m;
		$most_kb = max($most_kb, $kb // 0);
	}
	return;
}

sub killing
{
	my ($kill) = @_;

	return sub {
		my $from = time;
		my $done = $kill->();
		push @disturbances, [ undef, $from, time ];
		return $done;
	};
}

sub terminating
{
	my ($type) = @_;
	return killing(sub { $havoc->terminate("backend_type = '$type'", 1) });
}

# --- what is changed, if the server is up

my @paused;		# [subscription, from]
my ($guests, $guests_gone) = (0, 0);

sub some_names
{
	return map { $names[ rand @names ] } 1 .. AT_ONCE;
}

sub changing
{
	my ($call) = @_;

	return sub {
		look_at_memory();
		for my $name (some_names())
		{
			my $from = time;
			eval { sql("SELECT $call FROM outbox_subscription WHERE name = '$name'") };
			push @disturbances, [ $name, $from, time ];
		}
		return 1;
	};
}

sub resume
{
	while (@paused)
	{
		my ($name, $from) = @{ $paused[0] };
		eval { sql("SELECT outbox_resume('$name')"); 1 } or return 0;
		push @disturbances, [ $name, $from, time ];
		shift @paused;
	}
	return 1;
}

sub pause
{
	resume() or return 0;
	for my $name (some_names())
	{
		push @paused, [ $name, time ];
		eval { sql("SELECT outbox_pause('$name')") };
	}
	return 1;
}

# Guests come and go, but are not in @names.
sub change_guests
{
	my $gone = $guests_gone + 1;

	return eval {
		sql("SELECT outbox_unsubscribe('guest$gone'); DELETE FROM subscribed WHERE name = 'guest$gone'") if $guests > $gone + 1;
		$guests_gone++ if $guests > $gone + 1;
		$guests++;
		subscribe_numbers('guest', $guests, $guests, 'lazy-30', $zone);
		pop @names;
		1;
	};
}

my %killings = (
	'a relay' => killing(sub { $havoc->kill_type('idempotency relay') }),
	'a relay, terminated' => terminating('idempotency relay'),
	'the launcher, terminated' => terminating('idempotency launcher'),
	'the server, immediately' => killing(sub { $havoc->stop_and_start('immediate') }),
	'the whole server' => killing(sub { $havoc->kill_server && $havoc->start_again }),
	'another number of relays' =>
	  killing(sub { defined eval { alter_system('idempotency.relays', 1 + int(rand(3))); 1 } }),
	'pauses' => \&pause,
	'guests' => \&change_guests,
	'retries' => changing('outbox_retry(name)'),
	'redrives' => changing('outbox_redrive(name)'),
	'replays' => changing("outbox_replay(name, (SELECT greatest(1, last_value - @{[REPLAYED]}) FROM outbox_position_seq))"),
	'altered urls' => changing("outbox_alter(name, url => url || '?')"),
	'altered windows' => changing('outbox_alter(name, max_in_flight => 1 + (random() * 200)::int)'),
);
my $kills = $ENV{KILLS} // '.';
delete $killings{$_} for grep { !/$kills/ } keys %killings;

# --- the run

subscribe_all($good, %good);
subscribe_all($bad, %bad);
my $began = time;
$havoc->start_clients;
$havoc->get_on('their start', CALM_S * $rate);
look_at_memory();
$havoc->wreak($seconds, ($ENV{SOAK_SECONDS} ? 8 : 0.5) * $rate, %killings) if %killings;
$havoc->stop_clients('the end');
my $stopped = time;

# --- all that worked from the beginning get all events while the others fail

my $drained = 'SELECT bool_and(waiting = 0 AND parked = 0 AND in_flight = 0 AND lag_events = 0';
my $good_names = join('|', keys %good);
wait_until($node, 'SELECT true', 'the server is up');
ok(resume(), 'nothing is paused');
wait_until($node, "$drained) FROM outbox_subscriptions WHERE name ~ '^($good_names)[0-9]+\$'",
	'endpoints that fail do not keep events from others');
cmp_ok(sql("SELECT count(*) FROM outbox_subscriptions WHERE name ~ '^hangs' AND lag_events > 0 AND in_flight > 0"), '>', 0,
	'some hang still');

# --- all endpoints work

$receiver->heal;
sql('SELECT sum(outbox_retry(name)) FROM outbox_subscriptions');
wait_until($node, "$drained) FROM outbox_subscriptions", 'when all endpoints work, all events are delivered or dead');
sql('SELECT sum(outbox_redrive(name)) FROM outbox_subscriptions');
wait_until($node, "$drained AND dead = 0 AND state = 'active') FROM outbox_subscriptions", 'then all are delivered');
is(sql('SELECT sum(lost) FROM outbox_subscriptions'), '0', 'the log has lost nothing');
note(sprintf('drained in %.1f s', time - $stopped));
$havoc->check('at the end');

# --- what has arrived, and what has committed

my $disturbances = join('', map { join("\t", $_->[0] // '\N', $_->[1], $_->[2]) . "\n" } @disturbances);
sql(<<"EOF");
CREATE TABLE arrival (id bigserial, name text, position bigint, at bigint, accepted boolean);
COPY arrival (name, position, at, accepted) FROM '$arrived';
CREATE TABLE disturbance (name text, began float8, ended float8);
COPY disturbance FROM STDIN;
$disturbances\\.
CREATE TABLE event AS
	SELECT *, extract(epoch FROM pg_xact_commit_timestamp(xmin)) AS committed FROM sent;
CREATE TABLE wish AS
	SELECT s.name, s.kind, t.topic, o.filter, o.ordered, o.batch, extract(epoch FROM pg_xact_commit_timestamp(s.xmin)) AS since
	FROM subscribed s JOIN outbox_subscription o USING (name), (SELECT DISTINCT topic FROM sent) t
	WHERE outbox_topic_matches(o.topics, t.topic);
CREATE TABLE receipt AS
	SELECT name, position, min(id) AS arrived, min(id) FILTER (WHERE accepted) AS accepted, min(at) / 1000.0 AS at
	FROM arrival GROUP BY name, position;
CREATE TABLE due AS
	SELECT w.name, w.kind, w.ordered, w.batch, e.position, e.key, e.later, e.committed, e.committed > w.since AS is_certain,
		r.arrived, r.accepted, r.at - e.committed AS delay
	FROM wish w JOIN event e USING (topic) LEFT JOIN receipt r USING (name, position)
	WHERE coalesce(jsonb_path_match(e.payload, w.filter, silent => true), w.filter IS NULL);
EOF

# A test that a query finds nothing.
sub none
{
	my ($query, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(sql("SELECT count(*) FROM ($query) q"), '0', $what) || diag(sql("SELECT * FROM ($query) q LIMIT 10"));
}

none('SELECT * FROM due WHERE is_certain AND accepted IS NULL', 'every event was accepted by all that want it');
none('SELECT * FROM receipt r WHERE NOT EXISTS (SELECT FROM sent s WHERE s.position = r.position)', 'nothing else was sent');
none(<<'EOF', 'nor to others');
SELECT * FROM receipt r
WHERE EXISTS (SELECT FROM subscribed s WHERE s.name = r.name)
	AND NOT EXISTS (SELECT FROM due d WHERE (d.name, d.position) = (r.name, r.position))
EOF

# An event can stand in a request behind the one before it, so only acceptances
# are compared then.
none(<<'EOF', 'no event has overtaken an earlier one of its key');
SELECT * FROM (
	SELECT name, position, key, CASE WHEN batch > 1 THEN accepted ELSE arrived END AS came, max(accepted) OVER w AS before
	FROM due WHERE is_certain AND ordered AND NOT later AND key IS NOT NULL AND kind <> 'dies'
	WINDOW w AS (PARTITION BY name, key ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) q
WHERE came < before
EOF

my ($timed, $p50, $p99, $worst) = split(/\|/, sql(<<"EOF"));
SELECT count(*), array_to_string(percentile_disc(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY (1000 * delay)::int), '|')
FROM due d WHERE is_certain AND NOT later AND kind IN ('own', 'slow', 'filtered', 'batched', 'parts', 'free')
	AND NOT EXISTS (SELECT FROM disturbance t WHERE coalesce(t.name, d.name) = d.name
		AND d.committed BETWEEN t.began - @{[BEFORE_S]} AND t.ended + $normal_after_s)
EOF
cmp_ok($timed, '>', 10 * $rate, 'many deliveries were made while all was calm');
cmp_ok($p99, '<', DELAY_MS_MAX, 'nor delay them') if $ENV{SOAK_SECONDS};
cmp_ok($most_kb, '<', MEMORY_KB_MAX, 'the memory of a relay is bounded');

# Kills and restarts write messages too.
my @expected = (
	'the database system is',
	'lock file "postmaster.pid" already exists',
	'because of crash of another server process',
	'due to administrator command',
	'due to unexpected postmaster exit');
my $expected = join('|', @expected);
my @unexpected = grep { /(WARNING|ERROR|FATAL|PANIC):/ && !/$expected/ } split(/\n/, slurp_file($node->logfile));
is(join("\n", splice(@unexpected, 0, 20)), '', 'nothing unexpected is in the log');

my @sums = split(/\|/,
	sql('SELECT (SELECT count(*) FROM sent), (SELECT count(accepted) FROM receipt), (SELECT count(*) FROM arrival)'));
my $summary = sprintf('%d events, %d deliveries, %d lines of arrivals in %.0f s, %d kills and changes;'
	  . ' of %d: p50 %d ms, p99 %d ms, worst %d ms; relay %d kB',
	@sums, $stopped - $began, $havoc->deaths, $timed, $p50, $p99, $worst, $most_kb);
$ENV{SOAK_SECONDS} ? diag($summary) : note($summary);
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

$producers->stop;
done_testing();
