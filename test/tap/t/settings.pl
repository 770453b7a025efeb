# Each setting in the configuration file takes effect on reload.  If this
# fails, a changed setting has no effect until the next restart.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('settings', conf => <<EOF);
idempotency.webhook_allowed_networks = ''
idempotency.sweep_interval = 1h
EOF
wait_for_workers($node);

sub becomes_true
{
	my ($query) = @_;
	return $node->poll_query_until('postgres', "SELECT $query");
}

sub count_workers
{
	my ($kind, $count) = @_;
	return becomes_true("count(*) = $count FROM pg_stat_activity WHERE backend_type ~ 'idempotency $kind'");
}

# Waits until the sweeper has seen the current state: between two runs of its
# last step it runs each other step once.
sub sweep
{
	for (1 .. 2)
	{
		my $now = sql('SELECT clock_timestamp()');
		becomes_true(q(query = 'forgetting stock' AND state = 'idle' AND state_change > ') . $now
			  . q(' FROM pg_stat_activity WHERE backend_type = 'idempotency sweeper'))
		  or die 'the sweeper does not sweep';
	}
	return 1;
}

my $with_token = q(SELECT outbox_subscribe('token', 'https://127.0.0.1:1/', topics => '{token}',
	retry_schedule => '{0 s,50 ms,50 ms,50 ms,50 ms,50 ms,1 h}', authorization_file => 'token'));

# What a setting prevents, and then makes happen: [name, value, what exists
# before and must still exist, what comes].
my @effects = (
	[ 'webhook_allowed_networks', "'127.0.0.0/8'",
		sub {
			subscribe($node, $receiver, '/ok/shop', topics => "'{shop}'", retry_schedule => "'{0 s,50 ms,1 h}'");
			sql(q(SELECT outbox_enqueue('shop', '{"n": 1}')));
			return becomes_true('max(attempts) = 2 FROM outbox_delivery') && !$receiver->requests('shop');
		},
		sub { sql(q(SELECT outbox_enqueue('shop', '{"n": 2}'))); return $receiver->wait_for('shop', events => 1) } ],
	[ 'sweep_interval', "'10ms'",
		sub { sql(q(SELECT idem_claim('k', ttl => '1 us'))); return sql('SELECT count(*) FROM idem_key_0') == 1 },
		sub { becomes_true('count(*) = 0 FROM idem_key_0') } ],
	[ 'audit_retention', '0',
		sub { sql(q(SELECT idem_fence('audited'), idem_unfence('audited'))); sweep(); return sql('SELECT count(*) FROM idempotency_audit') > 0 },
		sub { becomes_true('count(*) = 0 FROM idempotency_audit') } ],
	[ 'keys_max_size', '0',
		sub { sql(q(SELECT idem_claim('kept'))); sweep(); return sql('SELECT count(*) FROM idem_key') == 1 },
		sub { becomes_true('count(*) = 0 FROM idem_key') } ],
	[ 'stock_compact_after', '1',
		sub { sql(q(SELECT stock_receive('hat', 1) FROM generate_series(1, 5))); sweep(); return sql('SELECT count(*) FROM stock_log') == 5 },
		sub { becomes_true('count(*) = 0 FROM stock_log') } ],
	[ 'stock_archive_topic', "'archive'",
		sub {
			subscribe($node, $receiver, '/ok/archive', topics => "'{archive}'");
			return sql('SELECT count(*) FROM outbox_log') == 2;
		},
		sub {
			sql(q(SELECT stock_receive('hat', 1) FROM generate_series(1, 5)));
			return $receiver->wait_for('archive', events => 1);
		} ],
	[ 'stock_history', '0',
		sub { sweep(); return sql("SELECT count(*) FROM stock_history WHERE change = 'receive'") >= 10 },
		sub { becomes_true('count(*) = 0 FROM stock_history_0') } ],
	[ 'webhook_credentials_directory', "'/nonexistent'",
		sub { error_code($node, 'postgres', $with_token) eq '55000' },
		sub {
			becomes_true("current_setting('idempotency.webhook_credentials_directory') <> ''") or return 0;
			sql($with_token);
			sql(q(SELECT outbox_enqueue('token', '{}')));
			becomes_true(q(count(*) > 0 FROM outbox_attempt WHERE error LIKE 'authorization_file "token" cannot be opened%')) or return 0;
			return sql(q(SELECT outbox_unsubscribe('token'))) eq '';
		} ],
	[ 'outbox_dead_retention', '0',
		sub {
			subscribe($node, $receiver, '/fail/dead', topics => "'{fail}'", retry_schedule => "'{0 s}'");
			sql(q(SELECT outbox_enqueue('fail', '{}')));
			return becomes_true('count(*) = 1 FROM outbox_dead') && sweep() && sql('SELECT count(*) FROM outbox_dead') == 1;
		},
		sub { becomes_true('count(*) = 0 FROM outbox_dead') } ],
	[ 'outbox_retention', '0',
		sub { sweep(); return sql('SELECT count(*) FROM outbox_log') >= 4 },
		sub { becomes_true('max(segment) > 1 FROM outbox_ring') } ],
	[ 'outbox_keep_size', '0',
		sub {
			sql(q(SELECT outbox_pause('shop'); SELECT outbox_enqueue('shop', '{}')));
			sweep();
			return sql('SELECT max(lost) FROM outbox_subscriptions') == 0;
		},
		sub { becomes_true("lost > 0 FROM outbox_subscriptions WHERE name = 'shop'") } ],
	[ 'relays', '3', sub { count_workers('relay', 1) }, sub { count_workers('relay', 3) } ],
	[ 'databases', 'nowhere', sub { count_workers('sweeper', 1) }, sub { count_workers('(relay|sweeper)', 0) } ],
);

is(join(' ', sort map { $_->[0] } @effects), sql(q(
	SELECT string_agg(replace(name, 'idempotency.', ''), ' ' ORDER BY name) FROM pg_settings
	WHERE name LIKE 'idempotency.%' AND context = 'sighup')), 'no setting is left out');
for (@effects)
{
	my ($name, $value, $before, $after) = @$_;
	ok($before->(), "before $name is changed");
	alter_system("idempotency.$name", $value);
	ok($after->(), "after $name was changed");
}

done_testing();
