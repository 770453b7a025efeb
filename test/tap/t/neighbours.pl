# Other extensions that are preloaded, before ours and after it: what tracks,
# explains and audits statements, runs jobs and replicates tables.  If this
# fails, a checkout beside one of them loses something or does it twice, a
# worker ends, the server does not stop, or the log has secrets.
#
# Needs: postgresql-MAJOR-cron postgresql-MAJOR-pgaudit postgresql-MAJOR-pg-qualstats
# Needs: postgresql-MAJOR-pglogical

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;
use Time::HiRes qw(time);

use constant {
	NEIGHBOURS => 'pg_stat_statements, auto_explain, pg_cron, pgaudit, pg_qualstats, pglogical',
	CHECKOUTS => 40,		# a round
	OPENING => 1000,
	STATEMENTS_MAX => 250,
	STOP_MAX_S => 60,
};

# Statements of this session are not logged, since they have secrets.
use constant UNSEEN => "SET pgaudit.log = 'none'; SET auto_explain.log_min_duration = -1;";

# Errors that the log may have: those that the test is about, and those of a
# server that is stopped or starts.
my $expected = join('|',
	'ERROR:  duplicate key value violates unique constraint "orders_pkey"',
	'ERROR:  cannot create a trigger on table "outbox_log_0" of extension idempotency',
	'pglogical apply .* ERROR:  (?:connection to other side has died|data stream ended)',
	'FATAL:  terminating .* due to administrator command',
	'FATAL:  the database system is (?:starting up|shutting down|not yet accepting connections)');

my $receiver = Receiver->start;
my %taken;			# by server: checkouts so far

sub start_beside
{
	my ($name, $libraries) = @_;
	my $node = new_server($name, allows_streaming => 'logical', conf => <<EOF);
shared_preload_libraries = '$libraries'
max_worker_processes = 40
max_prepared_transactions = 2
track_commit_timestamp = on
idempotency.sweep_interval = 100ms
idempotency.stock_compact_after = 20
idempotency.stock_events = on
pg_stat_statements.track = all
auto_explain.log_min_duration = 0
auto_explain.log_analyze = on
auto_explain.log_nested_statements = on
pgaudit.log = 'all'
pgaudit.log_parameter = on
pg_qualstats.sample_rate = 1
log_statement = none
EOF
	$node->append_conf('postgresql.conf', "cron.host = '@{[ $node->host ]}'");
	$node->start;
	use_server($node);
	# Of the minor releases since August 2026.
	alter_system('output_plugin_libraries', 'pgoutput, test_decoding, pglogical_output')
	  if sql(q(SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'));
	sql("CREATE EXTENSION $_") for grep { $_ ne 'auto_explain' } split(/, /, $libraries);
	return $node;
}

# --- a shop whose orders are replicated to a warehouse, and a job

# The secret and the header must not be logged.
sub subscribe_unseen
{
	my ($path, $topic, $db) = @_;
	my ($name) = $path =~ m{([^/]+)$};
	my $secret = $receiver->new_secret($name);

	sql(UNSEEN . "SELECT outbox_subscribe('$name', '@{[ $receiver->url($path) ]}', topics => '{$topic}', secret => '$secret',"
		  . " headers => '{\"Authorization\": \"Bearer @{[ PLANTED ]}\"}', retry_schedule => '{0 s" . ',100 ms' x 20 . "}')", $db);
	return;
}

# The restart runs the job, which otherwise runs at a full minute.
sub open_shop
{
	my ($node) = @_;
	my $name = $node->name;

	sql('CREATE TABLE orders (id text PRIMARY KEY, sku text, quantity int)');
	sql('SELECT stock_receive(\'hat\', ' . OPENING . ')');
	subscribe_unseen("/told/$name", 'order.placed');
	subscribe_unseen("/ok/$name-job", 'job.ran');
	sql(q(SELECT cron.schedule('job', '@reboot',
		$$SELECT outbox_enqueue('job.ran', jsonb_build_object('n', (SELECT count(*) FROM outbox_log WHERE topic = 'job.ran')))$$)));
	$node->restart;
	return;
}

# A trigger runs where the row is replicated to.
sub replicate
{
	my ($node) = @_;
	my $dsn = $node->connstr;

	sql('CREATE DATABASE warehouse');
	sql(q(
		CREATE EXTENSION pglogical;
		CREATE EXTENSION idempotency;
		CREATE TABLE orders (id text PRIMARY KEY, sku text, quantity int);
		CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM public.outbox_enqueue('order.arrived', jsonb_build_object('n', substr(NEW.id, 7)::int));
			RETURN NULL;
		END $$;
		CREATE TRIGGER announce AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION announce();
		ALTER TABLE orders ENABLE ALWAYS TRIGGER announce), 'warehouse');
	subscribe_unseen('/ok/' . $node->name . '-warehouse', 'order.arrived', 'warehouse');
	sql("SELECT pglogical.create_node('shop', '$dsn dbname=postgres')");
	sql(q(SELECT pglogical.replication_set_add_table('default', 'orders')));
	sql("SELECT pglogical.create_node('warehouse', '$dsn dbname=warehouse')", 'warehouse');
	sql("SELECT pglogical.create_subscription('orders', '$dsn dbname=postgres')", 'warehouse');
	sql(q(SELECT pglogical.wait_for_subscription_sync_complete('orders')), 'warehouse');
	return;
}

# --- checkouts

sub checkout
{
	my ($n, $name) = @_;
	$name //= $n;
	return qq(
		SELECT outcome FROM idem_claim('checkout $name', request => 'hat $n');
		SELECT outcome FROM stock_reserve('hat', 1, 'order $name');
		INSERT INTO orders VALUES ('order $n', 'hat', 1);
		SELECT outbox_enqueue('order.placed', '{"n": $n, "card": "@{[ PLANTED ]}", "fail": @{[ $n % 5 == 0 ? 1 : 0 ]}}', key => 'customer @{[ $n % 5 ]}');\n);
}

# Each of them once, one of them prepared, and some that are refused.
sub check_out_many
{
	my ($node) = @_;
	my $from = ($taken{ $node->name } // 0) + 1;
	my $last = $taken{ $node->name } = $from + CHECKOUTS - 1;

	sql(UNSEEN . join('', map { 'BEGIN;' . checkout($_) . 'COMMIT;' } $from .. $last - 1));
	sql(UNSEEN . 'BEGIN;' . checkout($last) . "PREPARE TRANSACTION 'last'");
	sql("COMMIT PREPARED 'last'");
	is(sql("SELECT string_agg(DISTINCT outcome::text, ' ') FROM generate_series($from, $last) n, idem_claim('checkout ' || n, request => 'hat ' || n)"),
		'completed', 'what is requested again has been done');
	is(sql("SELECT outcome FROM idem_claim('checkout $from', request => 'cap')"), 'mismatch', 'another request with the same key is refused');
	is(error_code($node, 'postgres', UNSEEN . 'BEGIN;' . checkout($last, 'again')), '23505', 'an order that exists is refused');
	return;
}

# What an endpoint has accepted, and how often.
sub accepted
{
	my ($name) = @_;
	my %times;
	$times{ $_->{n} }++ for grep { $_->{status} == 200 } $receiver->requests($name, qw(status data.n));
	return \%times;
}

# Is everything there once?  After a crash events may arrive twice.
sub is_once
{
	my ($node, $when, $crashed) = @_;
	my $name = $node->name;
	my $count = $taken{$name};
	my $unsent = 'SELECT count(*) FROM outbox_subscriptions WHERE lag_events > 0 OR in_flight > 0 OR waiting + parked > 0';
	my $findings = q(SELECT "check", state, detail FROM idempotency_status() WHERE state <> 'ok');
	my %got;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$receiver->wait_for("$name-warehouse", events => $count);
	for my $db (qw(postgres warehouse))
	{
		ok($node->poll_query_until($db, $unsent, '0'), "$when: everything in $db is sent");
		ok($node->poll_query_until($db, "SELECT count(*) FROM ($findings) f", '0'), "$when: the status of $db is ok")
		  or diag(sql($findings, $db));
	}
	for my $path ($name, "$name-warehouse")
	{
		my $times = accepted($path);
		is(join(' ', sort { $a <=> $b } keys %$times), join(' ', 1 .. $count), "$when: $path has each event");
		is(scalar(grep { $_ > 1 } values %$times), 0, "$when: once") unless $crashed;
	}
	is(scalar(grep { !$_->{verified} || $_->{verified} ne '1' } $receiver->requests($name, 'verified')), 0, "$when: all of them are signed");
	is(sql(q(SELECT (SELECT count(*) FROM idem_key), (SELECT count(*) FROM orders),
		(SELECT count(*) FROM outbox_log WHERE topic = 'order.placed'))) . '|' . sql('SELECT count(*) FROM orders', 'warehouse'),
		"$count|$count|$count|$count", "$when: as many keys, orders, events and replicated orders");
	is(stock_level('hat'), OPENING - $count . " $count", "$when: each piece is reserved once");
	is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', "$when: the ledger is right");
	return;
}

# --- what each of them could break

sub is_tracked
{
	my ($count, $calls) = split(/\|/, sql(q(SELECT count(*), max(calls) FROM pg_stat_statements WHERE query ~ 'idempotency_internal')));

	cmp_ok($calls, '>', CHECKOUTS, 'pg_stat_statements counts the statements of our workers');
	cmp_ok($count, '<', STATEMENTS_MAX, 'which are few');
	is(sql(q(SELECT count(*) FROM pg_stat_statements WHERE query ~ 'idempotency_internal' AND query ~ '(checkout|order|customer) \d')),
		'0', 'and have no values');
	note("$count statements");
	is(sql(UNSEEN . "SELECT count(*) > 0, count(*) FILTER (WHERE constvalue ~ '@{[ PLANTED ]}') FROM pg_qualstats"), 't|0',
		'pg_qualstats collects values, but not those');
	return;
}

sub is_guarded
{
	my ($node) = @_;
	is(error_code($node, 'postgres', 'CREATE TRIGGER t BEFORE INSERT ON outbox_log_0 FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()'),
		'55000', 'our tables are guarded');
	return;
}

# Each run of the job has enqueued one event.
sub job_has_run
{
	my ($node) = @_;
	my $name = $node->name . '-job';
	wait_until($node, q(SELECT count(*) > 0 FROM cron.job_run_details WHERE status = 'succeeded'), 'pg_cron runs a job');
	sql(q(SELECT cron.unschedule('job')));
	wait_until($node, q(SELECT bool_and(status = 'succeeded') FROM cron.job_run_details), 'without failures');
	my $runs = sql('SELECT count(*) FROM cron.job_run_details');
	is(sql(q(SELECT count(*) FROM outbox_log WHERE topic = 'job.ran')), $runs, 'each time it enqueues an event');
	$receiver->wait_for($name, events => $runs);
	is(scalar(keys %{ accepted($name) }), $runs, 'which arrives');
	return;
}

sub is_quiet
{
	my ($node) = @_;
	my $ours = 'DELETE FROM idempotency_internal.outbox_delivery';	# a statement of the relay
	my (@bad, %seen);

	open(my $log, '<', $node->logfile) or die $!;
	while (my $line = <$log>)
	{
		$seen{$1}++ if $line =~ /(AUDIT|Query Text).*\Q$ours\E/;
		push @bad, $line if $line =~ /(?:ERROR|FATAL|PANIC):  |terminated by signal/ && $line !~ /$expected/
		  || $line =~ PLANTED;
	}
	close($log);
	is(join('', splice(@bad, 0, 10)), '', 'the log has no other errors, and no secrets');
	ok($seen{AUDIT}, 'pgaudit has logged the statements of our workers');
	ok($seen{'Query Text'}, 'and so has auto_explain');
	return;
}

# ---------------------------------------------------------------------------

my @nodes = (
	start_beside('before', 'idempotency, ' . NEIGHBOURS),
	start_beside('after', NEIGHBOURS . ', idempotency'),
);
for my $node (@nodes)
{
	use_server($node);
	open_shop($node);
	replicate($node);
	sql('SELECT pg_stat_statements_reset()');	# of what has created them
}
for my $node (@nodes)
{
	my $name = $node->name;
	note("preloaded $name others");
	use_server($node);
	check_out_many($node);
	is_once($node, 'at first');
	is_tracked();
	is_guarded($node);
	job_has_run($node);
	check_out_many($node);
	$node->stop('immediate');
	$node->start;
	is_once($node, 'after a crash', 1);
	check_out_many($node);
	is_once($node, 'and later', 1);
	is_tracked();

	my $start = time();
	$node->stop('fast');
	cmp_ok(time() - $start, '<', STOP_MAX_S, 'the server stops');
	is_quiet($node);
}
done_testing();
