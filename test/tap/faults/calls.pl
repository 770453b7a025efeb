# A public function that fails at any point - an allocation, a check for
# interrupts, a lock, the end of its session - leaves the session usable, holds
# no lock, leaves no transaction open and changes nothing; and the server goes
# on.  If this fails, an error at the worst moment loses something, or stops
# other sessions.
#
# Each call is repeated, failing at its first point, its second, and so on,
# until it succeeds: all of the first hundred, then ever fewer of them.  It runs
# on the server of lib/asserts, which has such points (test/asserts).
# FAULTS="idem_claim allocation" selects calls and kinds; EVERY=1 tries every
# point in each form of a call; SEED repeats a run.

use strict;
use warnings FATAL => 'all';

use DBI;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

# How many points apart: after that of the first hundred, in other forms of a
# call than the plain one, and for sessions that end.
use constant { POINTS_MAX => 1000000, DENSE => 100, STRIDE => 17, STRIDE_TERMINATE => 50 };

# What fails; "own" are the allocations that the extension itself makes, of which
# all are tried.
use constant KINDS => qw(allocation own interrupt lock terminate);

my $seed = $ENV{SEED} // int(rand(1 << 30));
my @selected = split(' ', $ENV{FAULTS} // '');
srand($seed);

my $node = new_server('faults', conf => <<EOF);
shared_preload_libraries = 'idempotency, faults'
idempotency.sweep_interval = 1h
log_min_messages = warning
log_statement = none
log_min_error_statement = panic
max_prepared_transactions = 10
faults.strict_locks = on
EOF
$node->start;
sql('CREATE EXTENSION idempotency');
sql(q(
	SELECT outbox_subscribe('hook', 'http://127.0.0.1:1/', topics => '{none}');
	SELECT outbox_subscribe('reader', NULL, topics => '{read}', filter => '$.lines[*] < 0 || $.n > 0');
	SELECT outbox_topic('typed', description => 'known');
	SELECT stock_receive('hat', 1000000), stock_receive('cap', 1000000), stock_receive('still', 10);
	SELECT outcome FROM stock_reserve('still', 1, 'still');
	SELECT count(stock_receive('i' || i, 1000000)) FROM generate_series(1, 100) i;
	SELECT idem_claim('answered');
	CREATE ROLE anyone));

# The reader has read all but one event.
my $read = q(SELECT outbox_ack('reader', f.token) FROM (SELECT max(token) AS token FROM outbox_fetch('reader', 10000)) f WHERE f.token > 0; SELECT outbox_enqueue('read', '{"n": %n, "lines": [1, 2, 3]}', key => 'k'));

# A transaction with an event, and with a change of stock, that is prepared.
sub prepares
{
	my ($gid) = @_;
	return "BEGIN; SELECT stock_reserve('cap', 1, 'p-$gid'), outbox_enqueue('none', '{}'); PREPARE TRANSACTION '$gid'";
}

# Each: the call, and what has to be there before it, in which %n is a number
# that each try has for itself.  A call names the function first.
my @calls = (
	[q(idem_claim('k%n'))],
	[q(idem_claim('l%n', lease => '1 h', request => 'r', ttl => '1 day'))],
	[q(idem_claim('answered'))],
	[q(idem_claim_many('{a%n,b%n,answered}'))],
	[q(idem_complete('c%n', (SELECT token FROM idem_key WHERE key = 'c%n'), '{"a": 1}')), q(SELECT idem_claim('c%n', lease => '1 h'))],
	[q(idem_fail('f%n', (SELECT token FROM idem_key WHERE key = 'f%n'), '{}')), q(SELECT idem_claim('f%n', lease => '1 h'))],
	[q(idem_renew('n%n', (SELECT token FROM idem_key WHERE key = 'n%n'), '2 h')), q(SELECT idem_claim('n%n', lease => '1 h'))],
	[q(idem_forget('g%n')), q(SELECT idem_claim('g%n'))],
	[q(idem_fence('s%n'))],
	[q(idem_unfence('u%n')), q(SELECT idem_fence('u%n'))],
	[q(idem_export('e%n')), q(SELECT idem_fence('e%n'))],
	[q(idem_import(jsonb_build_object('scope', 'i%n', 'last_token', 1))), q(SELECT idem_fence('i%n'))],
	[q(outbox_enqueue('none', '{"n": %n}', key => 'k', headers => '{"a": "b"}'))],
	[q(outbox_enqueue('typed', '{"n": %n}', dedup_key => '%n', deliver_at => now() + interval '1 h'))],
	[q(outbox_cancel((SELECT max(position) FROM outbox_log))), q(SELECT outbox_enqueue('none', '{}', deliver_at => now() + interval '1 h'))],
	[q(outbox_event_id((SELECT max(position) FROM outbox_log)))],
	[q(outbox_subscribe('s%n', 'http://127.0.0.1:1/%n', filter => '$.n > 1', headers => '{"x-a": "b"}'))],
	[q(outbox_alter('hook', topics => '{none%n}'))],
	[q(outbox_pause('hook', 'why')), q(SELECT outbox_resume('hook'))],
	[q(outbox_resume('hook')), q(SELECT outbox_pause('hook'))],
	[q(outbox_ping('hook'))],
	[q(outbox_rotate_secret('hook'))],
	[q(outbox_rotate_key('hook'))],
	[q(outbox_public_key('hook'))],
	[q(outbox_fetch('reader', lease => '1 ms')), $read],
	[q(outbox_ack('reader', (SELECT max(token) FROM outbox_fetch('reader')))), $read],
	[q(outbox_replay('reader', 0))],
	[q(outbox_redrive('hook'))],
	[q(outbox_retry('hook'))],
	[q(outbox_discard('hook'))],
	[q(outbox_dead_page('hook'))],
	[q(outbox_erase('k%n')), q(SELECT outbox_enqueue('none', '{}', key => 'k%n'))],
	[q(idem_erase('er%n')), q(SELECT idem_claim('er%n', lease => '1 h'); SELECT idem_complete('er%n', (SELECT token FROM idem_key WHERE key = 'er%n'), '1'))],
	[q(outbox_acknowledge_lost('hook'))],
	[q(outbox_topic('t%n', description => 'x'))],
	[q(outbox_drop_topic('d%n')), q(SELECT outbox_topic('d%n'))],
	[q(outbox_unsubscribe('un%n')), q(SELECT outbox_subscribe('un%n', NULL))],
	[q(outbox_adopt())],
	[q(outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'msg_1', 1, '{}'))],
	[q(outbox_secret_generate())],
	[q(outbox_key_generate())],
	[q(outbox_topic_matches('{a.*}', 'a.b'))],
	[q(stock_receive('hat', 1, 'note'))],
	[q(stock_receive('new%n', 1))],
	[q(stock_adjust('hat', -1, 'note'))],
	[q(stock_backorder('cap', %n))],
	[q(stock_transfer('hat', 'cap', 1))],
	[q(stock_reserve('hat', 1, 'r%n'))],
	[q(stock_reserve('scarce%n', 2, 'w%n', wait => true)), q(SELECT stock_receive('scarce%n', 1))],
	[q(stock_reserve_many('{"hat": 1, "cap": 2}', 'm%n'))],
	# So many that what is kept of the transaction grows.
	[q(stock_reserve_many((SELECT jsonb_object_agg('i' || i, 1) FROM generate_series(1, 100) i), 'l%n'))],
	[q(stock_reserve_many((SELECT jsonb_object_agg('i' || i, 1) FROM generate_series(1, 17) i), 'e%n'))],
	[q(stock_change_many('ch%n', '{"hat": 3, "cap": 1}')), q(SELECT stock_reserve('hat', 1, 'ch%n'))],
	[q(stock_confirm('co%n')), q(SELECT stock_reserve('hat', 1, 'co%n'))],
	[q(stock_cancel('ca%n')), q(SELECT stock_reserve('hat', 1, 'ca%n'))],
	[q(stock_cancel('la%n')), q(SELECT stock_reserve('hat', 1, 'la%n', ttl => '1 us'))],
	[q(stock_extend('x%n')), q(SELECT stock_reserve('hat', 1, 'x%n'))],
	[q(stock_reinstate('re%n')), q(SELECT stock_reserve('hat', 1, 're%n'); SELECT stock_cancel('re%n'))],
	[q(stock_reservation_status('st%n')), q(SELECT stock_reserve('hat', 1, 'st%n'))],
	[q(stock_level('hat'))],
	[q(stock_position('w1'))],
	[q(stock_verify('still'))],
	[q(idempotency_status())],
	[q(idempotency_stats_reset())],
	[q(idempotency_repair())],
	[q(idempotency_grant('anyone'))],
	[q(idempotency_grant_reader('anyone'))],
	[q(idempotency_grant_operator('anyone'))],
	[q(idempotency_grant_admin('anyone'))],
	# What the sweeper does in each database.
	[q(idempotency_internal.idem_expire(100)), q(SELECT idem_claim('old%n', ttl => '1 us'))],
	[q(idempotency_internal.outbox_expire(100)), q(SELECT outbox_enqueue('none', '{}'))],
	[q(idempotency_internal.stock_expire(100)), q(SELECT stock_reserve('hat', 1, 'ex%n', ttl => '1 us'))],
	[q(idempotency_internal.stock_expire(1)), q(SELECT stock_reserve('i' || i, 1, 'ey%n-' || i, ttl => '1 us') FROM generate_series(1, 3) i)],
	[q(idempotency_internal.stock_serve(100)), q(SELECT stock_reserve('q%n', 1, 'q%n', wait => true) FROM stock_receive('q%n', 1, 'x'), stock_adjust('q%n', -1, 'x'); SELECT stock_receive('q%n', 1))],
	[q(idempotency_internal.stock_learn_names(100))],
	[q(idempotency_internal.stock_settle_prepared(100))],
	[q(idempotency_internal.stock_compact(100)), q(SELECT stock_adjust('hat', 1, 'x'), stock_adjust('hat', -1, 'x'))],
	[q(idempotency_internal.stock_forget(100))],
	# What statistics and status read of the workers.
	[q(idempotency_internal.outbox_traffic())],
	[q(idempotency_internal.outbox_latencies())],
	[q(idempotency_internal.idempotency_workers())],
	[q(COMMIT PREPARED 'c%n'), prepares('c%n'), 'statement'],
	[q(ROLLBACK PREPARED 'r%n'), prepares('r%n'), 'statement'],
	[q(idem_wait('answered', timeout => '1 ms')), undef, 'call'],
	[q(outbox_wait('reader', timeout => '1 ms')), undef, 'call'],
);

# --- a session, and what is asked of it after each fault

my $dbh;
my $connection = $node->connstr('postgres') =~ s/ /;/gr =~ s/'//gr;
my $left_behind = q(SELECT coalesce(string_agg(concat_ws(' ', locktype, relation::regclass, mode), ', '), '') FROM pg_locks
	WHERE pid = pg_backend_pid() AND NOT (locktype = 'virtualxid' OR locktype = 'relation' AND relation < 16384));

# A client that writes to a server that is down would be ended by a signal.
sub wait_for_server
{
	for (1 .. 1800)
	{
		return 1 if system_log('pg_isready', '-q', '-d', $node->connstr('postgres')) == 0;
		select(undef, undef, undef, 0.1);
	}
	return 0;
}

sub connect_again
{
	wait_for_server() or die 'the server does not come back';
	$dbh = DBI->connect("dbi:Pg:$connection", 'postgres', '', { RaiseError => 1, PrintError => 0, AutoCommit => 1 });
	# PL/pgSQL cannot be loaded again after an error.
	$dbh->do(q(DO 'BEGIN END'));
	return;
}

# What is wrong with the session, or ''.
sub complaint
{
	my ($locks);

	return 'the session has died' unless $dbh->ping;
	return 'a transaction is open' unless $dbh->ping == 1;
	eval { ($locks) = $dbh->selectrow_array($left_behind); 1 } or return "the session is broken: $@";
	return length $locks ? "locks are left: $locks" : '';
}

# The forms in which a call is made.
sub forms
{
	my ($call, $how) = @_;

	return (call => "CALL $call") if $how eq 'call';
	return (alone => $call) if $how eq 'statement';
	return (
		alone => "SELECT * FROM $call AS result",
		block => qq(DO \$do\$ BEGIN PERFORM $call; EXCEPTION WHEN division_by_zero THEN NULL; END \$do\$),
		caught => qq(DO \$do\$ BEGIN PERFORM $call; EXCEPTION WHEN query_canceled OR lock_not_available OR out_of_memory THEN PERFORM 1; END \$do\$),
		cursor => qq(DO \$do\$ DECLARE c refcursor; r record; BEGIN OPEN c FOR SELECT $call; FETCH c INTO r; CLOSE c; END \$do\$),
		procedure => qq(DO \$do\$ BEGIN COMMIT; PERFORM $call; ROLLBACK; PERFORM $call; COMMIT; END \$do\$));
}

my $number = 0;

# Prepared transactions that are there although their end was reported, or not
# although it has failed; ends them all.
sub complaint_about_prepared
{
	my ($has_failed) = @_;
	my $gids = $dbh->selectcol_arrayref('SELECT gid FROM pg_prepared_xacts');

	$dbh->do("ROLLBACK PREPARED '$_'") for @$gids;
	return @$gids == ($has_failed ? 1 : 0) ? '' : $has_failed ? 'the client is told of an error, but it has ended' : 'it has not ended';
}

# One call that fails at the n-th point.  Returns whether it came to that point.
sub fails_at
{
	my ($kind, $n, $before, $statement) = @_;
	my ($left, $error);

	$number++;
	$dbh->do(s/%n/$number/gr) for $statement =~ / PREPARED / ? $before : split(/; (?=SELECT)/, $before // '');
	eval { $dbh->do("SET faults.$kind = $n"); $dbh->do($statement =~ s/%n/$number/gr); 1 } or $error = $@;
	# What is left of it, unless the session has ended.
	eval { ($left) = $dbh->selectrow_array("SHOW faults.$kind"); $dbh->do("SET faults.$kind = 0"); };
	my $complaint = complaint();
	$complaint = "it fails by itself: $error" if $left && $error && !length $complaint;
	$complaint = complaint_about_prepared($error) if $statement =~ / PREPARED / && $kind ne 'terminate' && !length $complaint;
	if (length $complaint)
	{
		$dbh->disconnect;
		connect_again();
		$complaint = '' if $kind eq 'terminate';
		complaint_about_prepared(1);
	}
	return (!$left, $complaint);
}

connect_again();
my %called;
for my $call (@calls)
{
	my ($text, $before, $how) = @$call;
	my ($function) = $text =~ /^(?:idempotency_internal\.)?(\w+)/;
	$called{$function} = 1;
	next if @selected && !grep { $_ eq $function } @selected;
	for my $kind (KINDS)
	{
		next if (grep { my $word = $_; grep { $_ eq $word } KINDS } @selected) && !grep { $_ eq $kind } @selected;
		my %forms = forms($text, $how // '');
		my @wrong;
		my $tried = 0;
		for my $form (sort keys %forms)
		{
			next if $kind eq 'own' && $form !~ /^(alone|call)$/;
			my $stride = $ENV{EVERY} ? 1 : $kind eq 'terminate' ? STRIDE_TERMINATE : $form =~ /^(alone|call)$/ ? 1 : STRIDE;
			my $n = 1 + int(rand($stride));
			my $struck = 1;

			while ($struck && $n < POINTS_MAX && @wrong < 5)
			{
				my $complaint;
				($struck, $complaint) = fails_at($kind, $n, $before, $forms{$form});
				push @wrong, "$form, $kind $n: $complaint" if length $complaint;
				$tried++;
				$n += $stride == 1 ? 1 : 1 + int(rand(2 * $stride));
				$n += int(rand($n / DENSE * 2)) if $n > DENSE && !$ENV{EVERY} && $kind ne 'own';
			}
			push @wrong, "$form: it never succeeds" if $n >= POINTS_MAX;
		}
		ok(!@wrong, "$text: $kind, $tried points") or diag(join("\n", "SEED=$seed", @wrong));
	}
}

is(sql(q(SELECT count(*) FROM stock_verify() WHERE NOT ok)), 0, 'stock is right');
is(sql(q(SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency'
	WHERE p.pronamespace <> 'idempotency_internal'::regnamespace AND NOT p.proname = ANY ('{) . join(',', sort keys %called) . q(}'))), '',
	'each public function is called here') unless @selected;
unlike(slurp_file($node->logfile), qr/TRAP:|terminated by signal|PANIC|problem in alloc set/, 'the server never crashed');

done_testing();
