# Takes an order once for each key, with DBD::Pg: $dbh is connected with
# RaiseError => 1, and $lines has the quantities, such as {cup => 2, plate => 1}.
# The steps are explained in docs/drivers.md, "The examples".

use strict;
use warnings;

use JSON::PP;

my $json = JSON::PP->new->canonical;

sub checkout {
    my ($dbh, $key, $lines) = @_;
    my $order = $json->encode($lines);
    my $claim = $dbh->selectrow_hashref('SELECT outcome, token, response FROM idem_claim(?, ?, ?, ?)', undef,
        $key, 'checkout', '40 s', $order);
    return $json->decode($claim->{response}) if $claim->{outcome} eq 'completed';
    die "$claim->{outcome}\n" if $claim->{outcome} ne 'claimed';

    my $answer = {};
    $dbh->begin_work;
    eval {
        ($answer->{outcome}) = $dbh->selectrow_array('SELECT outcome FROM stock_reserve_many(?, ?)', undef, $order, $key);
        $dbh->do('SELECT outbox_enqueue(?, ?, ?)', undef, 'order.placed', $order, $key) if $answer->{outcome} eq 'reserved';
        $dbh->do('SELECT idem_complete(?, ?, ?, ?)', undef, $key, $claim->{token}, $json->encode($answer), 'checkout');
        $dbh->commit;
    } or do { my $error = $@; $dbh->rollback; die $error };
    return $answer;
}

1;
