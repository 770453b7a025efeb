# With synchronous_commit = off a transaction is visible before it is durable.
# Its event is sent only when no crash can undo it any more, and a lease is
# durable in any case.  If this fails, a crash leaves receivers with events of
# orders that do not exist, or a key with two owners that have the same token.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

use constant ROUNDS => 5;

# Only the relay flushes WAL soon.
my $receiver = Receiver->start;
my $node = start_server('durable', conf => <<EOF);
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
bgwriter_lru_maxpages = 0
autovacuum = off
EOF
my $lost = 0;

for my $round (1 .. ROUNDS)
{
	# While the receiver holds its answers, the relay has nothing to commit.
	subscribe($node, $receiver, "/hold/r$round", topics => "'{r$round}'");
	wait_for_workers($node);
	wait_for_pass($node);
	my $session = session($node);
	$session->query_safe('SET synchronous_commit = off');
	$session->query_safe("SELECT outbox_enqueue('r$round', '{\"n\": $_}')") for 1 .. 5;
	$receiver->wait_for("r$round", requests => 1);
	$node->stop('immediate');
	eval { $session->quit };

	my @arrived = split(/ /, $receiver->distinct_numbers("r$round"));
	$node->start;
	my %kept = map { $_ => 1 } split(/\n/, sql("SELECT payload ->> 'n' FROM outbox_log WHERE topic = 'r$round'"));
	$lost += grep { !$kept{$_} } @arrived;
	sql("SELECT outbox_unsubscribe('r$round')");
}
is($lost, 0, 'no event was announced whose transaction a crash has undone');

my $claim = q(SELECT outcome, token FROM idem_claim('payment', lease => '1 h'));
my $session = session($node);
$session->query_safe('SET synchronous_commit = off');
my ($outcome, $token) = split(/\|/, $session->query_safe($claim));
is($outcome, 'claimed', 'a lease is granted');
$node->stop('immediate');
eval { $session->quit };
$node->start;
is(sql($claim), 'in_progress|', 'and a crash does not undo it');
cmp_ok(sql(q(SELECT token FROM idem_claim('another', lease => '1 h'))), '>', $token,
	'nor give its token to another');

done_testing();
