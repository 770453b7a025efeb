# dbd_pg.pl
#		Calls the functions by DBI and DBD::Pg as an application does, and
#		prints a line for each step.  t/drivers.pl has the expected lines.
#
# Arguments: the driver's name, and a file with the example of docs/drivers.md; or
# a file with SQL, a statement a line, which is executed instead.

use strict;
use warnings FATAL => 'all';
use utf8;

use DBI;
use JSON::PP;
use Time::HiRes qw(sleep);

use constant SCOPE => 'drivers';
use constant LATER => '2040-01-02T03:04:05Z';

binmode STDOUT, ':encoding(UTF-8)';

my $codec = JSON::PP->new;
my $answer = $codec->encode({ order => 17, note => 'Grüße, 漢字' });
my $dbh = DBI->connect('dbi:Pg:', undef, undef, { RaiseError => 1, PrintError => 0 });

# The first row of a query, with positional parameters.
sub row
{
	my ($sql, @values) = @_;
	return $dbh->selectrow_hashref($sql, undef, @values);
}

# The fields of all objects of a JSON array.
sub describe
{
	my ($array, @fields) = @_;
	return join(', ', map { join(' ', @$_{@fields}) } @{ $codec->decode($array) });
}

sub claim
{
	my ($request) = @_;
	return row('SELECT outcome, token, attempt, response FROM idem_claim(?, ?, ?, ?)', 'key', SCOPE, '40 s', $request);
}

sub claims
{
	my $claim = claim('request');
	print "claim: $claim->{outcome} $claim->{attempt}\n";
	print 'claim again: ', claim('request')->{outcome}, "\n";
	print 'claim for another request: ', claim('other')->{outcome}, "\n";
	row('SELECT idem_complete(?, ?, ?, ?)', 'key', $claim->{token}, $answer, SCOPE);
	my $replay = claim('request');
	my $response = $codec->decode($replay->{response});
	print "replay: $replay->{outcome} $response->{order} $response->{note}\n";

	my $many = $dbh->selectall_arrayref('SELECT key, outcome FROM idem_claim_many(?, ?)', undef, [ 'key', 'new' ], SCOPE);
	print 'claim many: ', join(', ', map { "@$_" } @$many), "\n";
	return;
}

sub events
{
	my $event = row('SELECT outbox_enqueue(?, ?, ?, ?, ?, ?) AS position',
		'order.placed', $answer, 'ann', 'order', $codec->encode({ 'X-Shop' => 'hats' }), LATER);
	print 'enqueue: ', ($event->{position} > 0 ? 'true' : 'false'), "\n";
	return;
}

sub reservations
{
	print 'reserve: ',
	  row('SELECT outcome FROM stock_reserve(?, ?, ?, ?, ?)', 'hat', 2, 'one', '2 h', 'ann')->{outcome}, "\n";
	print 'reserve by three parameters: ',
	  row('SELECT outcome FROM stock_reserve(?, ?, ?)', 'hat', 1, 'two')->{outcome}, "\n";
	print 'reserve many: ',
	  row('SELECT outcome FROM stock_reserve_many(?, ?)', $codec->encode({ hat => 1, scarf => 2 }), 'many')->{outcome}, "\n";

	my $short = row('SELECT outcome, shortages FROM stock_reserve_many(?, ?)',
		$codec->encode([ { sku => 'hat', quantity => 100 }, { sku => 'scarf', quantity => 1 } ]), 'too many');
	print "shortage: $short->{outcome} ", describe($short->{shortages}, qw(sku wanted available missing)), "\n";

	print 'confirm: ', row('SELECT outcome FROM stock_confirm(?, ?)', 'many', ['hat'])->{outcome}, "\n";
	my $status = row('SELECT state, lines FROM stock_reservation_status(?)', 'many');
	print "status: $status->{state}, ", describe($status->{lines}, qw(sku state)), "\n";
	return;
}

sub lost_lease
{
	my @claim = ('SELECT token FROM idem_claim(?, ?, ?)', 'lost', SCOPE, '1 ms');
	my $token = row(@claim)->{token};
	sleep 0.05;
	row(@claim);

	$dbh->begin_work;
	eval {
		row('SELECT stock_reserve(?, ?, ?)', 'hat', 1, 'lost');
		row('SELECT idem_complete(?, ?, ?, ?)', 'lost', $token, $answer, SCOPE);
	} or print 'lost lease: ', $dbh->state, "\n";
	$dbh->rollback;
	my $level = row('SELECT available, reserved FROM stock_level(?)', 'hat');
	print "level: $level->{available} $level->{reserved}\n";
	return;
}

sub outcome_of
{
	my (@order) = @_;
	my $saved = eval { checkout($dbh, @order) };
	return $saved ? $saved->{outcome} : $@ =~ s/\n//r;
}

sub example
{
	print 'checkout: ', outcome_of('order-1', { cup => 2, plate => 2 }), "\n";
	print 'checkout again: ', outcome_of('order-1', { cup => 2, plate => 2 }), "\n";
	print 'checkout of another order: ', outcome_of('order-1', { cup => 3 }), "\n";
	print 'checkout of too much: ', outcome_of('order-2', { cup => 20 }), "\n";
	return;
}

sub execute_all
{
	my ($file) = @_;
	open my $statements, '<:encoding(UTF-8)', $file or die "$file: $!";
	$dbh->do($_) while <$statements>;
	close $statements;
	print "executed\n";
	return;
}

if ($ARGV[1] =~ /\.sql$/)
{
	execute_all($ARGV[1]);
	exit;
}
require $ARGV[1];
claims();
events();
reservations();
lost_lease();
example();
$dbh->disconnect;
