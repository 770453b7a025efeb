# Keys and reservations expire by themselves.  If this fails, keys accumulate,
# and what customers have not paid for stays reserved.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('expiry', conf => <<EOF);
idempotency.sweep_interval = 50ms
idempotency.stock_events = on
EOF

# --- keys

sql(q(
	SELECT count(idem_claim('short-' || i, ttl => '100 ms')) FROM generate_series(1, 2500) i;
	SELECT idem_claim('long');
	SELECT idem_claim('leased', lease => '100 ms', ttl => '1 h')));
wait_until($node, "SELECT count(*) = 0 FROM idem_key WHERE key LIKE 'short-%'",
	'keys vanish after their ttl');
is(sql('SELECT string_agg(key, \' \' ORDER BY key) FROM idem_key'), 'leased long', 'others stay');

# --- reservations; a lock on keys does not delay them

my $session = session($node);
$session->query_safe('BEGIN; LOCK TABLE idem_key_0, idem_key_1, idem_key_2 IN ACCESS EXCLUSIVE MODE');
subscribe($node, $receiver, '/ok/stock', topics => "'{stock.*}'");
sql(q(
	SELECT stock_receive('hat', 10), stock_receive('scarf', 10);
	SELECT stock_reserve_many('{"hat": 2, "scarf": 3}', 'unpaid', ttl => '200 ms');
	SELECT stock_reserve('hat', 4, 'kept', ttl => '1 h')));
wait_until($node, "SELECT count(*) = 0 FROM stock_hold WHERE reservation = 'unpaid'",
	'an unpaid reservation expires');
$session->query_safe('COMMIT');
is(sql('SELECT sku, available, reserved FROM stock_levels ORDER BY sku'), "hat|6|4\nscarf|10|0",
	'its quantities are free again, others are still reserved');
is(sql("SELECT sku, quantity FROM stock_log WHERE change = 'expire' ORDER BY sku"), "hat|2\nscarf|3",
	'the log has a row for each line');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
$receiver->wait_for('stock', events => 3);
my ($event) = grep { $_->{type} eq 'stock.expired' } $receiver->requests('stock');
ok($event, 'an event says so');
is_deeply($event->{data},
	{ reservation => 'unpaid', lines => [ { sku => 'hat', quantity => 2 }, { sku => 'scarf', quantity => 3 } ] },
	'and what it was');
is(sql("SELECT stock_confirm('unpaid')"), 'expired', 'a confirm that comes too late is told');

# --- audit

sql(q(INSERT INTO idempotency_audit_record (at, role, session_role, action, alters)
	VALUES (now() - interval '367 days', 'r', 'r', 'old', false), (now() - interval '365 days', 'r', 'r', 'young', false)));
wait_until($node, "SELECT count(*) = 0 FROM idempotency_audit WHERE action = 'old'", 'records of administrative calls vanish after a year');
is(sql('SELECT action FROM idempotency_audit ORDER BY at LIMIT 1'), 'young', 'younger ones stay');

# --- reload

$node->append_conf('postgresql.conf', 'idempotency.sweep_interval = 1h');
$node->reload;
wait_until($node, "SELECT setting = '3600000' FROM pg_settings WHERE name = 'idempotency.sweep_interval'",
	'reloaded');
sql("SELECT idem_claim('again', ttl => '50 ms')");
$node->append_conf('postgresql.conf', 'idempotency.sweep_interval = 50ms');
$node->reload;
wait_until($node, "SELECT count(*) = 0 FROM idem_key WHERE key = 'again'",
	'a sweeper that sleeps for an hour wakes at a reload');

$session->quit;
done_testing();
