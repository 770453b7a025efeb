# A base backup looks like its server: recovered to a point in time it
# continues from there, and a backup started for tests must be kept from
# sending.  If this fails, a restored backup loses committed data, or a test
# system sends the shop's webhooks to customers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $primary = start_server('primary', allows_streaming => 1, has_archiving => 1);

sub identities
{
	my %identities = map { $_->{id} =~ s/_\d+_\d+$//r => 1 } map { $receiver->requests($_) } @_;
	return scalar(keys %identities);
}

# The launcher has checked everything and started no worker.
sub has_no_workers
{
	my ($node) = @_;
	$node->poll_query_until('postgres',
		"SELECT wait_event = 'Extension' FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'");
	return $node->safe_psql('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type LIKE 'idempotency %'");
}

subscribe($primary, $receiver, '/hold/shop', topics => "'{shop}'", max_in_flight => 1, timeout => "'10 min'");
sql(q(SELECT idem_claim('before'); SELECT stock_receive('hat', 10); SELECT stock_reserve('hat', 1, 'before')));
sql(q(SELECT outbox_enqueue('shop', '{"n": 1}')));
$receiver->wait_for('shop', requests => 1);
$primary->backup('base');
sql(q(
	SELECT idem_claim('since');
	SELECT stock_reserve('hat', 2, 'since', ttl => '1 h');
	SELECT stock_confirm('before');
	SELECT outbox_enqueue('shop', '{"n": 2}')));
sql(q(SELECT pg_create_restore_point('accident')));
sql(q(
	SELECT idem_claim('after');
	SELECT stock_cancel('since');
	SELECT outbox_enqueue('shop', '{"n": 3}')));
my $segment = sql('SELECT pg_walfile_name(pg_current_wal_lsn()); SELECT pg_switch_wal()') =~ s/\n.*//sr;
$primary->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver") or die 'not archived';

# --- for tests, while the original runs

my $clone = PostgreSQL::Test::Cluster->new('clone');
$clone->init_from_backup($primary, 'base');
$clone->append_conf('postgresql.conf', "archive_mode = off\nidempotency.databases = 'none of them'");
is($clone->start(fail_ok => 1), 0, 'a clone does not start with a list of databases that has an error');
like(slurp_file($clone->logfile), qr/FATAL: +invalid value for parameter "idempotency.databases": "none of them"/, 'and says why');
$clone->append_conf('postgresql.conf', "idempotency.databases = 'none'");
$clone->start;
is(has_no_workers($clone), 't', 'a clone without databases has no workers');
is($clone->safe_psql('postgres', q(
		SELECT outcome FROM idem_claim('before');
		SELECT outcome FROM stock_reserve('hat', 9, 'all');
		SELECT outbox_enqueue('shop', '{"n": 4}') > 0)), "completed\nreserved\nt", 'but all else works');
is($clone->safe_psql('postgres', 'SELECT state FROM outbox_subscriptions'), 'active', 'it would send');
$clone->safe_psql('postgres', 'SELECT outbox_unsubscribe(name), outbox_adopt() FROM outbox_subscriptions');
subscribe($clone, $receiver, '/ok/clone');
$clone->append_conf('postgresql.conf', "idempotency.databases = ''");
$clone->reload;
wait_for_workers($clone);
$clone->safe_psql('postgres', q(SELECT outbox_enqueue('shop', '{"n": 5}')));
$receiver->wait_for('clone', events => 1);
is($receiver->numbers('clone'), '5', 'with a subscription of its own it sends what is new');
is(identities('shop', 'clone'), 2, 'and as an outbox of its own');
is(scalar($receiver->requests('shop')), 1, 'the receivers of the original have heard nothing of it');
$clone->stop;

# --- to a point in time

$primary->stop('immediate');
my $recovered = PostgreSQL::Test::Cluster->new('recovered');
$recovered->init_from_backup($primary, 'base', has_restoring => 1, standby => 0);
$recovered->append_conf('postgresql.conf', "recovery_target_name = 'accident'\nrecovery_target_action = 'promote'");
$recovered->start;
$receiver->release('shop');
$recovered->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'still in recovery';
wait_for_workers($recovered);
is($recovered->safe_psql('postgres', "SELECT key, outcome FROM unnest('{before,since,after}'::text[]) key, idem_claim(key)"),
	"before|completed\nsince|completed\nafter|claimed", 'keys are known up to the point in time');
is($recovered->safe_psql('postgres', "SELECT * FROM stock_level('hat'); SELECT stock_confirm('since'); SELECT count(*) FROM stock_verify() WHERE NOT ok"),
	"7|2\ndone\n0", 'so is stock');
$receiver->wait_for('shop', events => 2);
wait_for_pass($recovered);
is($receiver->distinct_numbers('shop'), '1 2', 'events up to there go out, and those that are gone do not');
is(identities('shop'), 1, 'the outbox is at home');

done_testing();
