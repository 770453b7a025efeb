# A standby runs no workers and accepts no claims.  After its promotion it
# continues where the primary was, and hands out positions again that the
# primary gave to commits that were not replicated.  If this fails, a failover
# sends events twice from two servers, or none at all, or receivers take new
# events for duplicates.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Cluster;
use Receiver;
use Server;
use Test::More;

# More than the values of a sequence that are logged in advance.
use constant LOST => 40;

my $receiver = Receiver->start;
my $primary = start_server('primary', allows_streaming => 1);

subscribe($primary, $receiver, '/ok/lost', topics => "'{lost}'");
subscribe($primary, $receiver, '/switch/shop', topics => "'{t}'",
	retry_schedule => "'{0 s,200 ms,200 ms,1 s,1 s,1 s,1 s,1 s,1 s,1 s,1 s,1 s,1 s}'");
enqueue_numbers($primary, 't', 1);
$receiver->wait_for('shop', events => 1);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# One event waits for a retry, another was not sent yet.
$primary->safe_psql('postgres', "SELECT stock_receive('hat', 5), idem_claim('k')");
$primary->safe_psql('postgres', q(SELECT idem_switch(); SELECT idem_claim('k2', lease => '1 us', ttl => '1 h')));
$receiver->switch('shop', 'fail');
$primary->safe_psql('postgres', q(SELECT outbox_enqueue('t', '{"n": 2}', key => 'a')));
$primary->poll_query_until('postgres', q(SELECT waiting = 1 FROM outbox_subscriptions WHERE name = 'shop'));
$primary->safe_psql('postgres', q(SELECT outbox_enqueue('t', '{"n": 3}', key => 'a')));
$primary->wait_for_catchup($standby);

is($standby->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%'"), '0', 'a standby runs no workers');
my %writes = (
	idem_claim => "SELECT idem_claim('x')",
	idem_claim_many => "SELECT idem_claim_many('{k,x}')",
	idem_migrate => 'SELECT idem_migrate()',
	idem_switch => 'SELECT idem_switch()',
	idem_complete => "SELECT idem_complete('k', 1)",
	idem_export => "SELECT idem_export('s')",
	idem_erase => "SELECT idem_erase('k')",
	idem_forget => "SELECT idem_forget('k')",
	outbox_enqueue => "SELECT outbox_enqueue('t', '{}')",
	outbox_erase => "SELECT outbox_erase('k')",
	outbox_subscribe => "SELECT outbox_subscribe('s', 'https://example.com/')",
	stock_receive => "SELECT stock_receive('hat', 1)",
	stock_reserve => "SELECT stock_reserve('hat', 1, 'r')",
	stock_reserve_many => q(SELECT stock_reserve_many('{"hat": 1}', 'r')),
	stock_transfer => "SELECT stock_transfer('hat', 'cap', 1)",
);
is(error_code($standby, 'postgres', $writes{$_}), '25006', "$_ is refused on a standby") for sort keys %writes;
my $stderr;
$standby->psql('postgres', $writes{idem_claim}, stderr => \$stderr);
like($stderr, qr/cannot execute idem_claim\(\) during recovery/, 'in clear words');
is($standby->safe_psql('postgres', "SELECT * FROM stock_level('hat')"), '5|0',
	'reading works there');
is($standby->safe_psql('postgres', q(SELECT state, waiting FROM outbox_subscriptions WHERE name = 'shop')), 'active|1',
	'and so does monitoring');

# --- failover, which loses events that were delivered

# Positions of the events that the failover loses, or that replace them.
sub lost_positions
{
	return split(/\n/, shift->safe_psql('postgres', q(SELECT position FROM outbox_log WHERE topic = 'lost')));
}

$standby->stop;
enqueue_numbers($primary, 'lost', 1 .. LOST);
$receiver->wait_for('lost', events => LOST);
my %lost = map { $_ => 1 } lost_positions($primary);
$primary->stop('immediate');
$receiver->switch('shop', 'ok');
$standby->start;
$standby->promote;
ok(wait_for_workers($standby), 'workers start after the promotion');
$receiver->wait_for('shop', events => 3);
enqueue_numbers($standby, 't', 4);
$receiver->wait_for('shop', events => 4);
my @requests = $receiver->requests('shop');
my %identities = map { $_->{id} =~ /^msg_([0-9a-f]+)_/; $1 => 1 } @requests;
is(scalar(keys %identities), 1, 'the outbox keeps its identity in a failover');
is($receiver->distinct_numbers('shop'), '1 2 3 4', 'and goes on where it was');
is(scalar(grep { $_->{data}{n} == 1 } @requests), 1,
	'what had been delivered and replicated is not sent again');
is($standby->safe_psql('postgres', "SELECT outcome FROM idem_claim('k')"), 'completed',
	'keys are known');

enqueue_numbers($standby, 'lost', LOST + 1 .. 2 * LOST);
ok((grep { $lost{$_} } lost_positions($standby)), 'positions of lost events are used again');
$receiver->wait_for('lost', events => 2 * LOST);
is($receiver->distinct_numbers('lost'), join(' ', 1 .. 2 * LOST), 'under other webhook-ids');

# A physical copy that runs beside its original would look the same.
my $timeline = q(SELECT state, detail FROM idempotency_status() WHERE "check" = 'timeline');
is($standby->safe_psql('postgres', $timeline),
	'warning|this server was promoted or restored: timeline 2, the outbox began on 1', 'the promotion is a warning');
$standby->safe_psql('postgres', 'SELECT outbox_adopt(keep_identity => true)');
is($standby->safe_psql('postgres', $timeline), 'ok|2, as when the outbox began', 'until it is accepted');
enqueue_numbers($standby, 't', 5);
$receiver->wait_for('shop', events => 5);
is(scalar(keys %{ { map { $_->{id} =~ /^msg_([0-9a-f]+)_/; $1 => 1 } $receiver->requests('shop') } }), 1, 'with the same identity');

# Keys expire on the new primary.
$standby->safe_psql('postgres', "SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'x' || i FROM generate_series(1, 100) i), ttl => '1 us')");
$standby->poll_query_until('postgres', q(SELECT max(segment) > 2 FROM idem_ring));
is($standby->safe_psql('postgres', "SELECT key, outcome, attempt FROM unnest(ARRAY['k', 'k2', 'x1']) key, idem_claim(key) ORDER BY key"),
	"k|completed|1\nk2|claimed|2\nx1|claimed|1", 'the ring goes on where it was');

done_testing();
