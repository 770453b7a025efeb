# What a session receives shows no secret: not by the plans of the statements
# inside our functions, by messages of any level, or by modules that print plans
# and values at the level LOG.  If this fails, an operator reads the credentials
# of customers' endpoints, or makes the server log them.
#
# Each role calls every function that it may call and reads every view that it
# may read, with every setting that prints something and that any role may
# set.  A function without a call in %call fails the test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Server;
use Test::More;

# What is planted; no statement of the roles below contains it.
my $secret = 'whsec_AAAASecret3kd' . 'A' x 27;
my $credentials = qr/Header5pq|Token7xw|AAAASecret3kd|whsk_/;
my $events = qr/Payload9zt|EventHeader2mh/;
my %secret_to = (
	application => qr/$credentials|$events/,
	reader => $credentials,
	admin => $credentials,
	operator => qr/$credentials|$events|Answer4jc/,
	monitor => qr/$credentials|$events|Answer4jc/);

my %call = (
	idem_claim => q(idem_claim('own')),
	idem_claim_many => q(idem_claim_many('{a,b}')),
	idem_complete => q(idem_complete('own', 1, '"x"')),
	idem_erase => q(idem_erase('done')),
	idem_export => q(count(idem_export('moved'))),
	idem_fail => q(idem_fail('own', 1)),
	idem_fence => q(idem_fence('moved')),
	idem_forget => q(idem_forget('own')),
	idem_import => q(idem_import('[]')),
	idem_renew => q(idem_renew('own', 1)),
	idem_unfence => q(idem_unfence('moved')),
	idem_wait => q(CALL idem_wait('own', timeout => '1 ms')),
	idempotency_grant => q(idempotency_grant('other')),
	idempotency_grant_admin => q(idempotency_grant_admin('other')),
	idempotency_grant_operator => q(idempotency_grant_operator('other')),
	idempotency_grant_reader => q(idempotency_grant_reader('other')),
	idempotency_repair => q(idempotency_repair()),
	idempotency_stats_reset => q(idempotency_stats_reset()),
	idempotency_status => q(idempotency_status()),
	outbox_ack => q(outbox_ack('read', (SELECT max(token) FROM outbox_fetch('read')), error => 'later')),
	outbox_acknowledge_lost => q(outbox_acknowledge_lost('victim')),
	outbox_adopt => q(outbox_adopt()),
	outbox_alter => q(outbox_alter('victim', topics => '{event,b}')),
	outbox_cancel => q(outbox_cancel(3)),
	outbox_dead_page => q(outbox_dead_page('victim')),
	outbox_discard => q(outbox_discard('victim', '{1}')),
	outbox_drop_topic => q(outbox_drop_topic('t')),
	outbox_enqueue => q(outbox_enqueue('event', '{}', key => 'k', dedup_key => 'd', replace => true, deliver_at => now() + interval '1 h')),
	outbox_erase => q(outbox_erase('k2')),
	outbox_event_id => q(outbox_event_id(1)),
	outbox_fetch => q(outbox_fetch('read')),
	outbox_key_generate => q(outbox_key_generate() IS NULL),
	outbox_pause => q(outbox_pause('victim')),
	outbox_ping => q(outbox_ping('victim')),
	outbox_public_key => q(outbox_public_key('victim')),
	outbox_redrive => q(outbox_redrive('victim')),
	outbox_replay => q(outbox_replay('victim', from_position => 1)),
	outbox_resume => q(outbox_resume('victim')),
	outbox_retry => q(outbox_retry('victim')),
	outbox_rotate_key => q(outbox_rotate_key('victim')),
	outbox_rotate_secret => q(outbox_rotate_secret('victim')),
	outbox_secret_generate => q(outbox_secret_generate()),
	outbox_signature => q(outbox_signature(outbox_secret_generate(), 'm', 1, '{}')),
	outbox_subscribe => q(outbox_subscribe('victim', 'http://127.0.0.1:9/')),
	outbox_topic => q(outbox_topic('t', description => 'd')),
	outbox_topic_matches => q(outbox_topic_matches('{*}', 't')),
	outbox_unsubscribe => q(outbox_unsubscribe('victim')),
	outbox_wait => q(CALL outbox_wait('read', '1 ms')),
	stock_adjust => q(stock_adjust('hat', -1, 'lost')),
	stock_backorder => q(stock_backorder('hat', 1)),
	stock_cancel => q(stock_cancel('r')),
	stock_change_many => q(stock_change_many('r', '[{"sku": "hat", "quantity": 2}]')),
	stock_confirm => q(stock_confirm('r')),
	stock_extend => q(stock_extend('r')),
	stock_level => q(stock_level('hat')),
	stock_position => q(stock_position('r')),
	stock_receive => q(stock_receive('hat', 5)),
	stock_reinstate => q(stock_reinstate('r')),
	stock_reservation_status => q(stock_reservation_status('r')),
	stock_reserve => q(stock_reserve('hat', 1, 'r')),
	stock_reserve_many => q(stock_reserve_many('[{"sku": "hat", "quantity": 1}]', 's')),
	stock_transfer => q(stock_transfer('hat', 'cap', 1)),
	stock_verify => q(stock_verify()));

my $node = start_server('sessions', conf => <<'END');
shared_preload_libraries = 'idempotency, auto_explain'
idempotency.stock_events = on
END

# Members of the extension, as %s of pg_depend d.
my $ours = q(JOIN pg_depend d ON d.objid = %s.oid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
		AND e.extname = 'idempotency');

sub plant
{
	sql(<<"END");
DO \$\$ BEGIN PERFORM outbox_unsubscribe(name) FROM outbox_subscriptions; END \$\$;
SELECT outbox_subscribe('victim', 'http://127.0.0.1:9/?token=Token7xw', topics => '{event}', secret => '$secret',
	headers => '{"Authorization": "Bearer Header5pq"}', retry_schedule => '{0 s,1 h}', keep_deliveries => '1 h');
SELECT outbox_rotate_key('victim');
SELECT outbox_subscribe('read', NULL, topics => '{event}');
SELECT outbox_enqueue('event', '{"a": "Payload9zt"}', key => 'k' || n, headers => '{"X-Event": "EventHeader2mh"}')
	FROM generate_series(1, 3) n;
SELECT idem_complete('done', token, '"Answer4jc"') FROM idem_claim('done', ttl => '1 day') WHERE outcome = 'claimed';
SELECT stock_receive('hat', 10);
END
	return wait_until($node, q(SELECT count(*) >= 3 FROM outbox_deliveries WHERE subscription = 'victim'),
		'some deliveries fail');
}

# A plan shows a value as a list of its bytes.
sub decoded
{
	my ($text) = @_;
	my @lists = $text =~ /\[\s+((?:-?\d+\s+)+)\]/g;
	return join("\n", map { join('', map { chr($_ & 255) } split) } @lists);
}

# Where a pattern is found, with what is around it; undef if it is not.
sub where
{
	my ($pattern, $text) = @_;
	return $text =~ $pattern ? substr($text, $-[0] > 80 ? $-[0] - 80 : 0, 160) =~ s/[^ -~]/./gr : undef;
}

# Everything that any role may set and that prints something, and some more.
my $loud = sql(<<'END');
SELECT string_agg(format('SET %s = %s;', name, CASE vartype WHEN 'bool' THEN 'on' ELSE '-1' END), ' ' ORDER BY name)
FROM pg_settings WHERE context = 'user' AND vartype IN ('bool', 'integer') AND name ~ '^debug_print_|^log_|^trace_'
END
like($loud, qr/debug_print_plan.*log_parameter_max_length_on_error/, 'there is something to switch on');
$loud .= q(LOAD 'plpgsql'; SET plpgsql.print_strict_params = on; SET plpgsql.extra_warnings = 'all';
	SET debug_pretty_print = off; SET client_min_messages = debug5;);

sql(join('', map { "CREATE ROLE $_ LOGIN;" } (keys %secret_to, 'other')));
sql(q(SELECT idempotency_grant('application'), idempotency_grant_reader('reader'),
	idempotency_grant_operator('operator'), idempotency_grant_admin('admin'); GRANT pg_monitor TO monitor));
# Only for these roles, so that the log has no other plans.
sql(join('', map { <<"END" } keys %secret_to));
ALTER ROLE $_ SET auto_explain.log_min_duration = 0;
ALTER ROLE $_ SET auto_explain.log_nested_statements = on;
ALTER ROLE $_ SET auto_explain.log_analyze = on;
ALTER ROLE $_ SET auto_explain.log_verbose = on;
END

for my $role (sort keys %secret_to)
{
	plant();
	my @functions = split(/\n/, sql('SELECT p.proname FROM pg_proc p ' . sprintf($ours, 'p')
		  . " WHERE p.pronamespace = 'public'::regnamespace AND has_function_privilege('$role', p.oid, 'EXECUTE')"));
	my @views = split(/\n/, sql('SELECT c.oid::regclass FROM pg_class c ' . sprintf($ours, 'c')
		  . " WHERE c.relkind = 'v' AND has_table_privilege('$role', c.oid, 'SELECT')"));
	is(join(' ', grep { !$call{$_} } @functions), '', "$role: there is a call of every function");

	# What takes the planted values away comes last.
	my @calls = map { $call{$_} =~ /^CALL/ ? $call{$_} : "SELECT $call{$_}" }
	  sort { ($a eq 'outbox_unsubscribe') <=> ($b eq 'outbox_unsubscribe') || $a cmp $b } @functions;
	my ($stdout, $stderr) = ('', '');
	$node->psql('postgres', join(";\n", $loud, (map { "SELECT * FROM $_" } @views), @calls, ''),
		on_error_stop => 0, extra_params => [ '-U', $role ], stdout => \$stdout, stderr => \$stderr);
	cmp_ok(scalar(() = $stderr =~ /LOG: +(?:plan:|duration: .* plan:)/g), '>', @calls,
		'its session receives plans of its own statements, by two ways');
	unlike($stderr, qr/permission denied/, 'and the answers to all');
	is(where($secret_to{$role}, join("\n", $stdout, $stderr, decoded($stderr))), undef, 'but nothing that is secret');
}

# --- errors quote no row

plant();
my @odd = map { my $name = $_; map { "$name('victim', $_)" } q(overlap => '290000 years'), q(overlap => 'infinity'), q(overlap => '-1 day') }
  qw(outbox_rotate_secret outbox_rotate_key);
push @odd, map { "outbox_alter('victim', $_)" } q(url => 'https://b/'), q(batch => 9), q(timeout => '9 years'), q(retry_schedule => '{9 s}'),
  q(keep_deliveries => '9 years'), q(rate_limit => 'NaN'), q(signing_key => 'x'), q(authorization_file => 'x'), q(topics => '{}'), q(filter => '$.a');
push @odd, q(outbox_replay('victim', since => 'infinity')), q(outbox_replay('victim', -1)), q(outbox_retry('victim', '{NULL}')),
  q(outbox_redrive('victim', '{{1}}')), q(outbox_subscribe('victim', NULL)), q(outbox_subscribe('other', 'http://127.0.0.1:9/', name => NULL));
my $error = '';
$node->psql('postgres', join("\n", 'SET idempotency.outbox_payload_max = 1;', map { "SELECT $_;" } @odd),
	on_error_stop => 0, extra_params => [ '-U', 'operator', '-v', 'VERBOSITY=verbose' ], stderr => \$error);
cmp_ok(scalar(() = $error =~ /ERROR:/g), '>', 10, 'an operator makes many mistakes');
unlike($error, qr/Failing row|$secret_to{operator}/, 'and errors show nothing of the rows');

$node->stop;
is(where(qr/$credentials|$events|Answer4jc/, decoded(slurp_file($node->logfile))), undef, 'nor does the log');

# It has secrets that were generated meanwhile, since an administrator has made
# auto_explain log nested statements; test/run searches the logs for any.
unlink($node->logfile) or die $!;

done_testing();
