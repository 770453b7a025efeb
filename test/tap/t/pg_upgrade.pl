# pg_upgrade moves a database with all its content to a new cluster, where it
# sends nothing, like any copy, until it is adopted; no worker runs while
# pg_upgrade works on a cluster.  If this fails, a major upgrade loses keys,
# stock or events, or sends events from a server that is about to be deleted.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $old = start_server('old', conf => 'idempotency.sweep_interval = 50ms');

sub contents
{
	my ($node) = @_;
	return $node->safe_psql('postgres', q(
		SELECT token, attempt, state, key, response FROM idem_key ORDER BY key;
		SELECT position, topic, payload FROM outbox_log ORDER BY position;
		SELECT name, url, secret, position, stragglers FROM outbox_subscription JOIN outbox_partition ON subscription = id ORDER BY name, number;
		SELECT position, state, attempts, payload FROM outbox_delivery ORDER BY position;
		SELECT identity FROM outbox_home;
		SELECT id, change, sku, quantity, reservation FROM stock_history ORDER BY id;
		SELECT sku, available, reserved FROM stock_levels ORDER BY sku;
		SELECT last_value FROM idem_token_seq UNION ALL SELECT last_value FROM outbox_position_seq));
}

# --- the content

subscribe($old, $receiver, '/hold/open', topics => "'{open}'");
subscribe($old, $receiver, '/switch/retried', topics => "'{retried}'", retry_schedule => "'{0 s,1 h}'");
$receiver->switch('retried', 'fail');
$old->safe_psql('postgres', q(
	SELECT token AS t FROM idem_claim('paid', lease => '1 min') \gset
	SELECT idem_complete('paid', :t, '{"charge": 1}');
	SELECT idem_claim('running', lease => '1 h');
	SELECT stock_receive('hat', 10);
	SELECT stock_reserve('hat', 3, 'order-1', ttl => '1 h');
	SELECT outbox_enqueue('retried', '{"n": 1}'), outbox_enqueue('open', '{"n": 1}')));
$receiver->wait_for('open', requests => 1);
$receiver->wait_for('retried', requests => 1);
$old->poll_query_until('postgres', q(SELECT count(*) = 1 FROM outbox_delivery WHERE state = 'waiting'));
$old->safe_psql('postgres', q(SELECT idem_claim('lapsed', ttl => '1 us')));
$old->stop('immediate');

# --- the mode that pg_upgrade starts a server in

command_ok([ 'pg_ctl', '-w', '-s', '-D', $old->data_dir, '-l', $old->logfile, '-o', '-b', 'start' ], 'postgres -b starts');
$old->_update_pid(1);
my $before = contents($old);
is($old->safe_psql('postgres', q(SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%')), '0',
	'there are no workers');
is(error_code($old, 'postgres', q(SELECT outbox_enqueue('open', '{}'))), '55000', 'and what needs them is refused');
my $requests = () = map { $receiver->requests($_) } qw(open retried);
$old->stop;
is($requests, 2, 'nothing is sent');

# --- pg_upgrade, between clusters of one version

my $new = new_server('new');
chdir PostgreSQL::Test::Utils::tempdir;
my $bin = $old->config_data('--bindir');
command_ok([ 'pg_upgrade', '--no-sync', '-b', $bin, '-B', $bin, '-d', $old->data_dir, '-D', $new->data_dir,
		'-s', $new->host, '-p', $old->port, '-P', $new->port ], 'pg_upgrade');
chdir '/';
$new->start;
ok($new->wait_for_log(qr/WARNING:  outbox subscriptions are held because this database is a copy/),
	'workers start, and hold the subscriptions');
is(contents($new), $before, 'keys, stock and events are there');
is($new->safe_psql('postgres', 'SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
is($new->safe_psql('postgres', q(SELECT outcome, response FROM idem_claim('paid'))), 'completed|{"charge": 1}', 'answers are remembered');
is($new->safe_psql('postgres', q(SELECT stock_confirm('order-1'))), 'done', 'reservations can be confirmed');
wait_for_pass($new);
$requests = () = map { $receiver->requests($_) } qw(open retried);
is($requests, 2, 'nothing is sent before');
$receiver->release('open');
$receiver->switch('retried', 'ok');
$new->safe_psql('postgres', q(SELECT outbox_adopt(keep_identity => true);
	UPDATE outbox_delivery SET due_at = now(); SELECT outbox_wake(); SELECT outbox_enqueue('open', '{"n": 2}')));
ok($receiver->wait_for('open', events => 2) && $receiver->wait_for('retried', requests => 2),
	'it is adopted, and goes on under its identity');

done_testing();
