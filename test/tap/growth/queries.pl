# The queries of docs/queries and of monitoring/ cost at most as much as there
# are rows that they count or show.  If this fails, looking at the server makes
# it slow.  Their variables name one row of each kind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Growth;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my %variables = (key => "'key-77'", position => 77, sku => "'sku-7'", reservation => "'order-77'");

# These find what they show by an index.
my %constant = map { $_ => 1 } qw(key event);

sub query_of
{
	my ($file) = @_;
	my $sql = slurp_file($file) =~ s/^--.*\n//gmr =~ s/;\s*\z//r;
	my ($name) = $file =~ m{([^/]+)\.sql$};

	$sql =~ s/(?<!:):'?(\w+)'?/$variables{$1} \/\/ die "$1?"/ge;
	return [ "docs/queries/$name.sql", $sql, $constant{$name} ? 'constant' : 'linear' ];
}

# The queries of an exporter: indented blocks that begin with "query: |".
sub queries_of
{
	my ($file) = @_;
	my @calls;

	my $text = slurp_file($file);

	while ($text =~ /^(\w+):\n  query: \|\n((?:    .*\n)+)/gm)
	{
		push @calls, [ "monitoring: $1", $2, 'linear' ];
	}
	return @calls;
}

my @monitoring = queries_of("$root/monitoring/postgres-exporter.yml");
my @docs = map { query_of($_) } glob("$root/docs/queries/*.sql");
ok(@monitoring >= 15 && @docs >= 10, 'the files have queries');

growth('all modules',
	base => "SELECT outbox_subscribe('s' || i, 'http://127.0.0.1:9/', keep_deliveries => '1 day') FROM generate_series(1, 100) i",
	rows => <<'SQL',
	SELECT count((idem_claim('key-' || i, lease => '1 h')).token) FROM generate_series(:from, :to) i;
	INSERT INTO idempotency_internal.outbox_delivery
		(subscription, position, partition, state, blocks_key, attempts, due_at,
		 last_at, last_status, last_error, created_at, topic, key, payload)
	SELECT 1 + i % 2, i, 0, CASE i % 3 WHEN 0 THEN 'dead' WHEN 1 THEN 'waiting' ELSE 'parked' END, i % 3 > 0, 3,
		CASE i % 3 WHEN 1 THEN now() + interval '1 h' END, now(), 500, 'HTTP 500', now(), 't', 'k' || i, '{}'
	FROM generate_series(:from, :to) i;
	INSERT INTO idempotency_internal.outbox_history_0 (subscription, position, attempt, at, topic, created_at)
	SELECT 1 + i % 2, i, 1, now(), 't', now() FROM generate_series(:from, :to) i;
	SELECT count(outbox_enqueue('t', '{}')) FROM generate_series(:from, :to);
	SELECT count(stock_receive('sku-' || i, 10)) FROM generate_series(:from, :to) i WHERE i % 10 = 0 OR i = 7;
	SELECT count((stock_reserve('sku-7', 1, 'order-' || i)).outcome) FROM generate_series(:from, :to) i WHERE i = 77;
SQL
	churn => 'UPDATE idempotency_internal.outbox_delivery SET attempts = attempts + 1',
	calls => [ @docs, @monitoring ]);

done_testing();
