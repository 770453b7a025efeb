# The audit: a call that adds a record costs the same however many there are, and
# a step of the sweeper that deletes some costs a constant.  If this fails, an
# administrator's calls become slower from year to year.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use Test::More;

my $subscribe = "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/') FROM generate_series(1, 3) i";

# Records of one subscription, which have changed its settings or not.
sub records
{
	my ($at) = @_;
	return <<SQL;
	INSERT INTO idempotency_internal.idempotency_audit_record (at, role, session_role, action, object, alters)
	SELECT $at + i * interval '1 ms', 'r', 'r', 'outbox_alter', 's1', i % 2 = 0 FROM generate_series(:from, :to) i;
SQL
}

growth('records of a subscription',
	base => $subscribe,
	rows => records(q(now() - interval '1 day')),
	calls => [
		[ 'alter it', "SELECT outbox_alter('s1', timeout => '1 s')", 'constant' ],
		[ 'alter another one', "SELECT outbox_alter('s2', timeout => '1 s')", 'constant' ],
		[ 'retry', "SELECT outbox_retry('s1')", 'constant' ],
		[ 'forget', "SELECT idem_forget('k'), idem_claim('k'), idem_forget('k')", 'constant' ],
		[ 'grant', "SELECT idempotency_grant('pg_monitor')", 'constant' ],
		[ 'outbox_subscriptions', 'SELECT * FROM outbox_subscriptions', 'constant' ],
		[ 'idempotency_status', 'SELECT * FROM idempotency_status()', 'constant' ],
		[ 'idempotency_audit', q(SELECT * FROM idempotency_audit WHERE object = 's1' ORDER BY at), 'linear' ],
	]);

growth('records',
	base => $subscribe,
	rows => records(q(now() - interval '1 day')),
	worker => 1,
	calls => [ [ 'a step of the sweeper', 'SELECT idempotency_internal.idempotency_expire_audit(100)', 'constant' ] ]);

growth('old records',
	base => $subscribe,
	rows => records(q(now() - interval '2 years')),
	worker => 1,
	calls => [ [ 'a step of the sweeper', 'SELECT idempotency_internal.idempotency_expire_audit(100)', 'constant' ] ]);

done_testing();
