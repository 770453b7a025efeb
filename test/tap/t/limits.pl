# Workers need no connection slots, and if there are fewer worker slots than
# workers, some databases are served, and the others as soon as slots are free.
# If this fails, too many clients stop the deliveries, or too few slots stop
# all.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant { DATABASES => 5, SERVED => 2 };

my $receiver = Receiver->start;

# PostgreSQL's own launcher takes a slot, ours another, and discovery one at a
# time.
my $slots = 2 + 2 * SERVED;
my $node = new_server('limits', conf => <<EOF);
max_worker_processes = $slots
max_connections = 6
superuser_reserved_connections = 2
log_min_messages = debug1
EOF
$node->start;

sub databases_served
{
	return sql(q(SELECT count(*) FROM (SELECT FROM pg_stat_activity
		WHERE backend_type ~ '^idempotency (relay|sweeper)' GROUP BY datname HAVING count(*) = 2) d));
}

# How often no slot was free, as logged at a level.
sub count_missing
{
	my ($level) = @_;
	my @lines = slurp_file($node->logfile) =~ /$level:  could not start idempotency \w+: no free background worker slot/g;
	return scalar(@lines);
}

# --- no connections left, for workers of an owner who is not a superuser

sql('CREATE ROLE boss SUPERUSER; CREATE ROLE plain LOGIN; CREATE DATABASE shop');
sql('SET SESSION AUTHORIZATION boss; CREATE EXTENSION idempotency', 'shop');
sql('REASSIGN OWNED BY boss TO plain; ALTER ROLE plain CONNECTION LIMIT 4', 'shop');
subscribe($node, $receiver, '/ok/shop', db => 'shop');
my @sessions = map { $node->background_psql('shop', extra_params => [ '-U', 'plain' ]) } 1 .. 4;
is(error_code($node, 'shop', 'SET SESSION AUTHORIZATION plain; SELECT 1'), '', 'a superuser can still connect');
$node->psql('shop', 'SELECT 1', extra_params => [ '-U', 'plain' ], stderr => \my $refused);
like($refused, qr/too many connections|remaining connection slots are reserved/, 'nobody else can');
sql('ALTER DATABASE shop CONNECTION LIMIT 4');
ok(terminate_worker($node, $_, 'shop'), "a $_ can") for qw(relay sweeper);
sql(q(SELECT outbox_enqueue('t', '{}')), 'shop');
ok($receiver->wait_for('shop', events => 1), 'and delivers');
$_->quit for @sessions;
sql('DROP DATABASE shop');

# --- fewer slots than workers

for my $i (1 .. DATABASES)
{
	sql("CREATE DATABASE shop$i");
	sql('CREATE EXTENSION idempotency', "shop$i");
	wait_for_workers($node, "shop$i") if $i <= SERVED;
}
$node->reload;		# makes the launcher try all of them at once
ok($node->wait_for_log(qr/(?:DEBUG:  could not start idempotency discovery.*?){@{[DATABASES - SERVED]}}/s),
	'those for whom there is no slot are tried again');
is(count_missing('WARNING'), DATABASES - SERVED, 'but each is reported once');
is(databases_served(), SERVED, 'the others are served');
sql("DROP DATABASE shop$_") for 1 .. SERVED;
ok($node->poll_query_until('postgres', q(SELECT count(*) = 4 FROM pg_stat_activity
	WHERE datname LIKE 'shop%' AND backend_type ~ '^idempotency (relay|sweeper)')), 'when there are slots again, others are');
sql("DROP DATABASE shop$_") for SERVED + 1 .. DATABASES;
sql('CREATE DATABASE last');
sql('CREATE EXTENSION idempotency', 'last');
ok(wait_for_workers($node, 'last'), 'and there is no lack of them in the end');

# --- more relays configured than there are slots

sql('ALTER SYSTEM SET idempotency.databases = nowhere');
$node->reload;
wait_for_no_workers($node, 'last');
sql('CREATE DATABASE more');
sql('CREATE EXTENSION idempotency', 'more');
sql('ALTER SYSTEM SET idempotency.relays = 3');
sql('ALTER SYSTEM RESET idempotency.databases');
$node->reload;
ok(wait_for_workers($node, $_), "each database has one relay before any has a second: $_") for qw(last more);

done_testing();
