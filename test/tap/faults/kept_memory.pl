# A call that fails again and again at the same point, in one session, keeps no
# memory.  What a session makes once - a context for signatures, callbacks - is
# made completely, or not at all.  If this fails, a relay or a pooled session
# that is short of memory loses more of it with each try.
#
# It runs on the server of lib/asserts, as calls.pl does.  Each point is tried in
# a new session, which has made nothing yet.

use strict;
use warnings FATAL => 'all';

use DBI;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;

# What a try may keep: pg_hmac_create() of the server keeps 56 bytes if its second
# allocation fails.
use constant KEPT_MAX => 56;

# Tries until caches are full, and then three times as many each, in all of which
# more memory is kept if a try keeps some; points of a call that are tried, of
# which those of the server come first.
use constant { TRIES_FIRST => 3, TRIES => 3, POINTS => 300, STRIDE => 23 };

my $seed = $ENV{SEED} // int(rand(1 << 30));
srand($seed);

my $node = new_server('kept_memory', conf => <<EOF);
shared_preload_libraries = 'idempotency, faults'
idempotency.sweep_interval = 1h
log_min_messages = panic
log_min_error_statement = panic
EOF
$node->start;
sql('CREATE EXTENSION idempotency');
sql(q(SELECT stock_receive('hat', 1000000); SELECT outbox_subscribe('reader', NULL, topics => '{none}')));

my $connection = $node->connstr('postgres') =~ s/ /;/gr =~ s/'//gr;

# What is kept for as long as the session lives; contexts of the server's caches
# are others.
sub kept
{
	my ($dbh) = @_;
	return scalar $dbh->selectrow_array(q(SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'));
}

# Fails at the n-th allocation, so many times.  Returns whether it has.
sub fails
{
	my ($dbh, $call, $n, $tries) = @_;
	my $failed = 0;

	for (1 .. $tries)
	{
		$dbh->do("SET faults.allocation = $n");
		$failed += !defined eval { $dbh->do("SELECT * FROM $call AS result") };
		# This fails itself if the call has not come to that point.
		eval { $dbh->do('SET faults.allocation = 0') };
	}
	return $failed == $tries;
}

for (
	[ q(outbox_signature('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'msg_1', 1, '{}')), 1 ],
	[ q(idem_claim('k')), STRIDE ],
	[ q(outbox_enqueue('none', '{}')), STRIDE ],
	[ q(outbox_fetch('reader')), STRIDE ],
	[ q(stock_reserve('hat', 1, 'r' || random())), STRIDE ])
{
	my ($call, $stride) = @$_;
	my @wrong;
	my $points = 0;

	for (my $n = $stride == 1 ? 1 : 1 + int(rand($stride)); $n < POINTS; $n += $stride)
	{
		my $dbh = DBI->connect("dbi:Pg:$connection", 'postgres', '', { RaiseError => 1, PrintError => 0, AutoCommit => 1 });

		$dbh->do(q(DO 'BEGIN END'));	# it cannot be loaded again after an error
		kept($dbh);
		fails($dbh, $call, $n, TRIES_FIRST);
		my ($failed, $least, $last) = (1, undef, kept($dbh));
		for (1 .. 3)
		{
			$failed &&= fails($dbh, $call, $n, TRIES);
			my $more = kept($dbh) - $last;
			$least = $more if !defined $least || $more < $least;
			$last += $more;
		}
		push @wrong, "allocation $n: $least bytes" if $failed && $least > KEPT_MAX * TRIES;
		$points++ if $failed;
		$dbh->disconnect;
		last if !$failed && $stride == 1;
	}
	ok(!@wrong, "$call: $points points") or diag(join("\n", "SEED=$seed", @wrong));
	cmp_ok($points, '>', 2, 'which is some');
}

done_testing();
