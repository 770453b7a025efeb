# The payments of docs/how-to/stock.md: each order is charged once, and in the end it
# is paid and its stock has left, or its money goes back, although callers die
# between all steps, several try the same order, and many payments come too
# late.  If this fails, a customer pays twice or for nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use List::Util qw(shuffle);
use lib "$FindBin::RealBin/../lib";
use Page;
use Server;
use Test::More;
use Time::HiRes qw(sleep);

use constant {
	ORDERS => 60,
	HATS => 40,
	CALLERS => 4,
};

my $seed = $ENV{SEED} // int(rand(2**31));
srand($seed);
note("seed $seed");

my $node = start_server('payment', internal_path => 0, conf => "idempotency.sweep_interval = 20ms\n");
my ($function) = grep { /FUNCTION finish_payment/ } Page->load('how-to/stock.md')->blocks('sql');
$function =~ s/^SELECT .*//ms;
sql($function);
sql("SELECT stock_receive('hat', ${\ HATS})");

# The provider has a database of its own, and answers a repeated call with the
# same charge.
sql('CREATE DATABASE provider');
sql(<<'EOF', 'provider');
CREATE TABLE charge (key text PRIMARY KEY, id text DEFAULT 'ch_' || gen_random_uuid());
CREATE TABLE call (key text);
EOF

sub charge
{
	my ($order) = @_;
	return sql("INSERT INTO call VALUES ('$order'); INSERT INTO charge VALUES ('$order') ON CONFLICT DO NOTHING;"
		  . " SELECT id FROM charge WHERE key = '$order'", 'provider');
}

sub try_sql
{
	my ($query) = @_;
	my ($status, $output) = $node->psql('postgres', $query);
	return $status == 0 ? $output : undef;
}

# One caller: it tries an order, and may die at any step.  Returns the answer,
# if it gets one.
sub pay
{
	my ($order, $dies) = @_;
	my $answer = try_sql("SELECT outcome, token, response ->> 'status' FROM idem_claim('$order', scope => 'payment', lease => '300 ms')");
	my ($outcome, $token, $status) = split(/\|/, $answer // '');

	return $status if ($outcome // '') eq 'completed';
	return if ($outcome // '') ne 'claimed' || $dies == 1;
	my $charge = charge($order);
	return if $dies == 2;
	sleep(0.4) if $dies == 3;	# the lease is over: another owner may be faster
	return try_sql("BEGIN; SELECT finish_payment('$order', $token, '$charge'); ROLLBACK") && undef if $dies == 4;
	return try_sql("SELECT finish_payment('$order', $token, '$charge') ->> 'status'");
}

# --- reservations, of which many lapse before they are paid

# Nobody else may take what is left, or all late payments would find it there.
my @orders = map { "order-$_" } 1 .. ORDERS;
for my $order (@orders)
{
	my $ttl = rand() < 0.5 ? '1 h' : '50 ms';
	sql("SELECT stock_reserve('hat', 1, '$order', ttl => '$ttl')");
	sleep(0.06) if $ttl ne '1 h' && rand() < 0.3;
}
my @reserved = split(/\n/, sql("SELECT DISTINCT reservation FROM stock_history WHERE change = 'reserve'"));
cmp_ok(scalar(@reserved), '>', HATS, 'more orders than hats were reserved, one after the other');

my @children;
for my $caller (1 .. CALLERS)
{
	my $child = fork() // die "fork: $!";
	if ($child == 0)
	{
		srand($seed + $caller);
		for my $order (shuffle @reserved)
		{
			pay($order, int(rand(8)));
		}
		require POSIX;
		POSIX::_exit(0);
	}
	push @children, $child;
}
waitpid($_, 0) for @children;
sleep(0.4);
my %answer = map { $_ => pay($_, 0) // pay($_, 0) // 'none' } @reserved;

# --- what has become of them

my %count;
$count{$_}++ for values %answer;
is(join(' ', sort keys %count), 'paid refund', 'each order has its answer, and there are both');
is(sql('SELECT count(*) - count(DISTINCT key) FROM charge', 'provider'), '0', 'nobody was charged twice');
is(sql('SELECT count(*) FROM charge', 'provider'), scalar(@reserved), 'and each order once');
cmp_ok(sql('SELECT count(*) FROM call', 'provider'), '>', scalar(@reserved), 'although the provider was called more often');
is(sql(q(SELECT string_agg(reservation, ' ' ORDER BY reservation) FROM stock_history WHERE change = 'confirm')),
	join(' ', sort grep { $answer{$_} eq 'paid' } @reserved), 'the stock of the paid ones has left, once each');
is(sql(q(SELECT string_agg(topic || ' ' || key, ', ' ORDER BY key) FROM outbox_log)),
	join(', ', map { "payment.$answer{$_} $_" } sort @reserved), 'each has one event, which says the same');
cmp_ok($count{paid}, '<=', HATS, 'no hat was sold twice');
is(sql('SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'the ledger is right');
diag("failed with SEED=$seed") unless Test::More->builder->is_passing;

done_testing();
