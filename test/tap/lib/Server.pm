# Server: private clusters with the extension, and functions that tests use on
# them.

package Server;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use IPC::Run;
use List::Util qw(min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(gettimeofday time usleep);

# Pauses between looks of poll_query_until.
use constant { LOOK_FIRST_US => 5_000, LOOK_LAST_US => 50_000 };

our @EXPORT = qw(
  new_server start_server sql use_server alter_system subscribe enqueue_numbers
  enqueue_steadily webhook_id stock_level error_code session finish wait_for_workers
  wait_for_no_workers worker_pid terminate_worker relay_shares wait_for_pass wait_until
  watch_relay
);

# The server that sql() uses: the first one made, or that of use_server().
my $server;

# With an immediate stop the processes would not write their counters.
if ($ENV{COVERAGE})
{
	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::teardown_node = sub { $_[0]->stop('fast', fail_ok => 1) };
}

# Waits until a query gives what is expected, as the function that it replaces.
# That starts psql for each look; here one session looks, more often and with a
# part of the CPU time.  If the session ends, since the server does, there is
# another.
sub poll_query_until
{
	my ($self, $dbname, $query, $expected) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my %session = (expected => $expected // 't', query => $query, end => $end);

	local %ENV = $self->_get_env();
	while (time < $end)
	{
		my $timer = IPC::Run::timer(1 + int($end - time));
		my $run = IPC::Run::start(
			[ $self->installed_command('psql'), '-XAt', '-d', $self->connstr($dbname) ],
			'<', \$session{stdin}, '>', \$session{stdout}, '2>', \$session{stderr}, $timer);

		if (eval { _look_until(\%session, $run, $timer) })
		{
			$run->finish;
			return 1;
		}
		$run->kill_kill;
		usleep(LOOK_LAST_US);
	}
	diag("this was to return $session{expected}:\n$query\nit returned:\n$session{stdout}$session{stderr}");
	return 0;
}

# Dies if the session ends.
sub _look_until
{
	my ($session, $run, $timer) = @_;
	my $looked = qr/^looked\n\z/m;
	my $pause_us = LOOK_FIRST_US;

	while (time < $session->{end})
	{
		$session->{stdout} = $session->{stderr} = '';
		$session->{stdin} = "$session->{query}\n;\n\\echo looked\n\\warn looked\n";
		$run->pump
		  until $timer->is_expired || $session->{stdout} =~ $looked && $session->{stderr} =~ $looked;
		s/\n?$looked// for $session->{stdout}, $session->{stderr};
		return 1 if $session->{stdout} eq $session->{expected} && $session->{stderr} eq '';
		# What happens at regular intervals is not always looked at in between.
		usleep($pause_us / 2 + rand($pause_us));
		$pause_us = min(2 * $pause_us, LOOK_LAST_US);
	}
	return 0;
}

# A session that has done nothing for long may end.
my $quit = \&PostgreSQL::Test::BackgroundPsql::quit;

{
	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::poll_query_until = \&poll_query_until;
	*PostgreSQL::Test::BackgroundPsql::quit = sub { $_[0]{timeout}->start; return $quit->(@_) };
}

# Copies test/run's cluster, which is faster than initdb.  The second server of a
# test, and later ones, get an identifier of their own: by that the extension
# knows whether a database is a copy.  pg_resetwal writes WAL of the identifier
# that it finds, and the checksum that is wrong then.
sub copy_cluster
{
	my ($from, $to) = @_;
	my ($seconds, $microseconds) = gettimeofday;

	system_or_bail('cp', '-a', $from, $to);
	return unless $server;
	open(my $control, '+<:raw', "$to/global/pg_control") or die "pg_control: $!";
	print $control pack('Q', $seconds << 32 | $microseconds << 12 | $$ & 0xFFF);
	close($control) or die "pg_control: $!";
	system_or_bail('pg_resetwal', '-f', '-D', $to);
	return;
}

sub init_server
{
	my ($node, $template, %params) = @_;
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;

	no warnings 'redefine';
	local *PostgreSQL::Test::Utils::system_or_bail = sub {
		return $run->(@_) unless $_[0] eq 'initdb';
		return copy_cluster($template, $node->data_dir);
	  }
	  unless !$template || $params{extra};
	$node->init(%params);
	return;
}

# Makes a server that is configured but not running.  Parameters are those of
# PostgreSQL::Test::Cluster's init, and:
#   conf => lines of configuration
#   preload => 0: without preloading the library
#   internal_path => 0: with the search_path of users, who must write the schema
#     of internal tables; by default tests need not
#   template => the cluster that is copied, if not the one without the extension
sub new_server
{
	my ($name, %params) = @_;
	my $conf = delete $params{conf} // '';
	my $preload = delete $params{preload} // 1;
	my $internal_path = delete $params{internal_path} // 1;
	my $template = delete $params{template} // $ENV{CLUSTER_TEMPLATE};
	my $node = PostgreSQL::Test::Cluster->new($name);

	init_server($node, $template, %params);
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'idempotency'")
	  if $preload;
	$node->append_conf('postgresql.conf',
		q(search_path = '"$user", public, idempotency_internal'))
	  if $internal_path;
	$node->append_conf('postgresql.conf', <<EOF);
idempotency.webhook_allowed_networks = '127.0.0.0/8'
restart_after_crash = on
max_worker_processes = 20
$conf
EOF
	$server //= $node;
	return $node;
}

# The same, but running, with the extension in the database postgres.  A copied
# extension gets younger, as segments are switched by their age.
sub start_server
{
	my ($name, %params) = @_;
	my $template = ($ENV{CLUSTER_TEMPLATE} // '') . '-extension';
	my $is_copy = -d $template && !$params{extra};
	my $node = new_server($name, %params, $is_copy ? (template => $template) : ());

	$node->start;
	$node->safe_psql('postgres', $is_copy
		? join(';', map { "UPDATE idempotency_internal.${_}ring SET opened_at = clock_timestamp() WHERE opened_at IS NOT NULL" }
			  qw(idem_ outbox_ outbox_history_ stock_))
		: 'CREATE EXTENSION idempotency');
	return $node;
}

# Returns the output of statements; the test ends if one fails.
sub sql
{
	my ($sql, $db) = @_;
	return $server->safe_psql($db // 'postgres', $sql);
}

# Sets the server that sql() uses, such as a promoted standby.
sub use_server
{
	($server) = @_;
	return;
}

# Sets a parameter for all sessions; the value is SQL.
sub alter_system
{
	my ($parameter, $value) = @_;
	sql("ALTER SYSTEM SET $parameter = $value");
	sql('SELECT pg_reload_conf()');
	return;
}

# Subscribes a path of the receiver; the last part of the path is the name of
# the subscription.  Parameters are those of outbox_subscribe, as SQL; db: the
# database.  Requests that the receiver holds stay out on a slow machine, too.
sub subscribe
{
	my ($node, $receiver, $path, %params) = @_;
	my $db = delete $params{db} // 'postgres';
	my ($name) = $path =~ m{([^/]+)$};
	my $secret = $receiver->new_secret($name);
	$params{timeout} //= q('10 min') if $path =~ m{^/hold/};
	my $more = join('', map { ", $_ => $params{$_}" } sort keys %params);

	$node->safe_psql($db,
		"SELECT outbox_subscribe('$name', '"
		  . $receiver->url($path)
		  . "', secret => '$secret'$more)");
	return $secret;
}

# Enqueues an event {"n": number} for each of the numbers, each in its own
# transaction.
sub enqueue_numbers
{
	my ($node, $topic, @numbers) = @_;
	$node->safe_psql('postgres',
		join('', map { "SELECT outbox_enqueue('$topic', '{\"n\": $_}');\n" } @numbers));
	return;
}

# Enqueues events {"n": number, "at": milliseconds since 1970}, each in its own
# transaction, with a pause after each.
sub enqueue_steadily
{
	my ($node, $topic, $count, $pause_ms) = @_;
	$node->safe_psql('postgres', qq(
		DO \$\$
		BEGIN
			FOR n IN 1 .. $count LOOP
				PERFORM outbox_enqueue('$topic', jsonb_build_object('n', n,
					'at', floor(1000 * extract(epoch FROM clock_timestamp()))));
				COMMIT;
				PERFORM pg_sleep($pause_ms / 1000.0);
			END LOOP;
		END
		\$\$));
	return;
}

# The webhook-id that an event in the log must have; db: the database.
sub webhook_id
{
	my ($node, $position, $db) = @_;
	return $node->safe_psql($db // 'postgres', qq(
		SELECT format('msg_%s_%s_%s', replace(h.identity::text, '-', ''), e.position,
			(extract(epoch FROM e.created_at) * 1000000)::bigint)
		FROM outbox_log e, idempotency_internal.outbox_home h WHERE e.position = $position));
}

# The available and reserved quantity of an item, in the database of sql().
sub stock_level
{
	my ($sku) = @_;
	return sql("SELECT available || ' ' || reserved FROM stock_level('$sku')");
}

# The SQLSTATE of a command's error; empty if it succeeds.
sub error_code
{
	my ($node, $db, $sql) = @_;
	my ($code, $stdout, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	return $stderr =~ /(?:ERROR|FATAL): +(\w{5})/ ? $1 : '';
}

# Opens a session, which continues after errors.
sub session
{
	my ($node, $db) = @_;
	my $session = $node->background_psql($db // 'postgres', on_error_stop => 0);

	$session->set_query_timer_restart;
	return $session;
}

# Watches the transactions of the relay. Returns a function that stops that and
# returns how long the longest one has been, in ms.
sub watch_relay
{
	my ($node) = @_;
	my $session = session($node);

	sql('CREATE TABLE watch_ends (); CREATE TABLE longest (ms double precision)');
	$session->query_until(qr/watching/, <<'EOF');
\echo watching
DO $$
DECLARE
	longest interval := '0';
BEGIN
	WHILE NOT EXISTS (SELECT FROM watch_ends) LOOP
		PERFORM pg_stat_clear_snapshot(), pg_sleep(0.001);
		longest := greatest(longest, (SELECT max(clock_timestamp() - xact_start) FROM pg_stat_activity
			WHERE backend_type = 'idempotency relay'));
	END LOOP;
	INSERT INTO longest VALUES (extract(epoch FROM longest) * 1000);
END
$$;
EOF
	return sub {
		sql('INSERT INTO watch_ends DEFAULT VALUES');
		wait_until($node, 'SELECT count(*) = 1 FROM longest', 'transactions of the relay were watched');
		$session->quit;
		return sql('SELECT ms FROM longest');
	};
}

# Ends its transaction, by COMMIT or ROLLBACK, and the session.
sub finish
{
	my ($session, $how) = @_;
	$session->query_safe($how);
	$session->quit;
	return;
}

# A test that passes as soon as the query returns true.
sub wait_until
{
	my ($node, $query, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return ok($node->poll_query_until('postgres', $query), $what);
}

sub _count_workers
{
	my ($db, $kind) = @_;
	$kind = $kind ? "= 'idempotency $kind'" : "LIKE 'idempotency %'";
	return "SELECT count(*) FROM pg_stat_activity"
	  . " WHERE datname = '$db' AND backend_type $kind";
}

# Waits until a relay and a sweeper run in the database.
sub wait_for_workers
{
	my ($node, $db) = @_;
	$db //= 'postgres';
	for my $kind (qw(relay sweeper))
	{
		$node->poll_query_until('postgres', _count_workers($db, $kind), '1')
		  or die "no $kind in $db";
	}
	return 1;
}

sub wait_for_no_workers
{
	my ($node, $db) = @_;
	return $node->poll_query_until('postgres', _count_workers($db // 'postgres'), '0');
}

sub _of_kind
{
	my ($kind, $db) = @_;
	my $where = "backend_type = 'idempotency $kind'";

	$where .= " AND datname = '" . ($db // 'postgres') . "'" unless $kind eq 'launcher';
	return $where;
}

# Returns a worker's pid; waits for the worker if necessary.
sub worker_pid
{
	my ($node, $kind, $db) = @_;

	$node->poll_query_until('postgres',
		'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . _of_kind($kind, $db))
	  or die "no $kind";
	return $node->safe_psql('postgres',
		'SELECT pid FROM pg_stat_activity WHERE ' . _of_kind($kind, $db));
}

# Terminates a worker and waits until another one runs.  The launcher starts a
# relay or a sweeper again after a pause, which doubles if it has not lived for
# 10 s; a reload ends the pause.
sub terminate_worker
{
	my ($node, $kind, $db) = @_;
	my $pid = worker_pid($node, $kind, $db);
	my $waits = $kind eq 'launcher' ? 'false' : 'NOT pg_reload_conf()';

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	return $node->poll_query_until('postgres',
		"SELECT CASE WHEN count(*) FILTER (WHERE pid = $pid) > 0 THEN false WHEN count(*) > 0 THEN true ELSE $waits END"
		  . ' FROM pg_stat_activity WHERE ' . _of_kind($kind, $db));
}

# A query of how many relays serve how many partitions, such as '2 6'.
sub relay_shares
{
	return q(SELECT (SELECT count(DISTINCT l.pid) || ' ' || count(*)
		FROM pg_locks l, idempotency_internal.outbox_partition p
		WHERE l.locktype = 'advisory' AND l.objsubid = 3 AND l.objid::bigint = (p.subscription + p.number) % 64));
}

# Waits until each relay has read everything that exists now and is asleep.  A
# pass that begins before may end after, so this waits for two.
sub wait_for_pass
{
	my ($node, $db) = @_;
	my $done = 1;
	$db //= 'postgres';
	for (1 .. 2)
	{
		my ($now) = split(/\n/,
			$node->safe_psql($db, 'SELECT clock_timestamp(); SELECT idempotency_internal.outbox_wake()'));
		$done &&= $node->poll_query_until('postgres',
			"SELECT coalesce(bool_and(state = 'idle' AND query_start >= '$now'), false)"
			  . " FROM pg_stat_activity WHERE datname = '$db' AND backend_type = 'idempotency relay'");
	}
	return $done;
}

1;
