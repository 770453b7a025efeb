# Operators send events again, and change secrets while events are sent.  If
# this fails, a replay skips or repeats wrong events, or receivers cannot
# verify requests while a secret is rotated.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Receiver;
use Server;
use Test::More;

my $receiver = Receiver->start;
my $node = start_server('replay');

sub ids
{
	return map { $_->{id} } $receiver->requests(shift, 'id');
}

# --- replay

subscribe($node, $receiver, '/ok/again', topics => "'{again}'");
enqueue_numbers($node, 'again', 1 .. 10);
$receiver->wait_for('again', requests => 10);
my $middle = sql("SELECT clock_timestamp()");
my $position = sql('SELECT max(position) FROM outbox_log');
enqueue_numbers($node, 'again', 11 .. 15);
enqueue_numbers($node, 'other', 16);
$receiver->wait_for('again', requests => 15);
wait_for_pass($node);
is(sql("SELECT outbox_replay('again', from_position => $position)"), $position, 'a replay from a position');
$receiver->wait_for('again', requests => 21);
wait_for_pass($node);
is($receiver->sorted_numbers('again'), join(' ', sort { $a <=> $b } 1 .. 15, 10 .. 15), 'sends what comes from there on');
is(scalar(keys %{ { map { $_ => 1 } ids('again') } }), 15, 'under the same webhook-ids');
sql("SELECT outbox_replay('again', since => '$middle')");
$receiver->wait_for('again', requests => 26);
wait_for_pass($node);
is($receiver->sorted_numbers('again'), join(' ', sort { $a <=> $b } 1 .. 15, 10 .. 15, 11 .. 15),
	'a replay from a time likewise');

# --- while requests are in flight

subscribe($node, $receiver, '/hold/busy', topics => "'{busy}'", max_in_flight => 4);
enqueue_numbers($node, 'busy', 1 .. 8);
$receiver->wait_for('busy', requests => 4);
wait_until($node, "SELECT in_flight = 4 FROM outbox_subscriptions WHERE name = 'busy'", 'requests are out');
my $first = sql("SELECT min(position) FROM outbox_log WHERE topic = 'busy'");
is(sql("SELECT outbox_replay('busy', from_position => $first) IS NULL"), 't', 'nothing is read again that was not delivered');
$receiver->release('busy');
$receiver->wait_for('busy', requests => 8);
wait_for_pass($node);
sql("UPDATE outbox_subscription SET url = replace(url, 'hold/busy', 'hold/later') WHERE name = 'busy'; SELECT outbox_wake()");
wait_for_pass($node);
$receiver->set_secret('later', sql("SELECT secret FROM outbox_subscription WHERE name = 'busy'"));
enqueue_numbers($node, 'busy', 9 .. 16);
$receiver->wait_for('later', requests => 4);
is(sql("SELECT outbox_replay('busy', from_position => $first)"), $first, 'a replay while others are on their way');
$receiver->release('later');
$receiver->wait_for('later', events => 16);
wait_until($node, "SELECT position = last_value AND waiting = 0 FROM outbox_subscriptions, outbox_position_seq"
	  . " WHERE name = 'busy'", 'comes to its end');
is($receiver->distinct_numbers('later'), join(' ', 1 .. 16), 'with everything');
is(scalar(grep { $_->{verified} ne '1' } $receiver->requests('later')), 0, 'signed as ever');

# --- while the relay is about to record deliveries

subscribe($node, $receiver, '/ok/raced', topics => "'{raced}'");
enqueue_numbers($node, 'raced', 1 .. 4);
$receiver->wait_for('raced', requests => 4);
wait_for_pass($node);
$receiver->set_secret('race', sql("SELECT secret FROM outbox_subscription WHERE name = 'raced'"));
sql("SELECT outbox_alter('raced', url => '" . $receiver->url('/hold/race') . "')");
enqueue_numbers($node, 'raced', 5 .. 6);
$receiver->wait_for('race', requests => 2);
my $session = session($node);
$session->query_safe("BEGIN; SELECT outbox_replay('raced', (SELECT min(position) FROM outbox_log WHERE topic = 'raced'))");
$receiver->release('race');
wait_until($node, "SELECT in_flight = 0 FROM outbox_subscriptions WHERE name = 'raced'", 'all is answered before the replay commits');
$session->query_safe('COMMIT');
$session->quit;
$receiver->wait_for('race', requests => 8);
is($receiver->sorted_numbers('race'), '1 2 3 4 5 5 6 6', 'the replay wins');

# --- rotation

my $old = subscribe($node, $receiver, '/ok/rotated', topics => "'{rotated}'");
my $new = sql("SELECT outbox_rotate_secret('rotated', overlap => '1 h')");
enqueue_numbers($node, 'rotated', 1);
$receiver->wait_for('rotated', requests => 1);
$receiver->set_secret('rotated', $new);
enqueue_numbers($node, 'rotated', 2);
$receiver->wait_for('rotated', requests => 2);
my @requests = $receiver->requests('rotated');
ok($requests[0]{verified} eq '1', 'a receiver that has the old secret verifies');
ok($requests[1]{verified} eq '1', 'so does one that has the new');
like($requests[1]{headers}{'webhook-signature'}, qr{^v1,\S+ v1,\S+$}, 'there are two signatures');
$receiver->set_secret('rotated', $old);
my $newest = sql("SELECT outbox_rotate_secret('rotated', overlap => '0')");
enqueue_numbers($node, 'rotated', 3);
$receiver->wait_for('rotated', requests => 3);
$receiver->set_secret('rotated', $newest);
enqueue_numbers($node, 'rotated', 4);
$receiver->wait_for('rotated', requests => 4);
@requests = $receiver->requests('rotated');
isnt($requests[2]{verified}, '1', 'without overlap the old secret is of no use any more');
ok($requests[3]{verified} eq '1', 'the new one is');
wait_until($node, 'SELECT old_secret IS NULL FROM outbox_subscription WHERE name = \'rotated\'', 'the old one is forgotten');

# --- events that were read ahead

my $stolen = subscribe($node, $receiver, '/hold/ahead', topics => "'{ahead}'", max_in_flight => 2);
enqueue_numbers($node, 'ahead', 1 .. 6);
$receiver->wait_for('ahead', requests => 2);
$receiver->set_secret('moved', sql("SELECT outbox_rotate_secret('ahead', overlap => '0')"));
sql("SELECT outbox_alter('ahead', url => '" . $receiver->url('/ok/moved') . "')");
wait_for_pass($node);
$receiver->release('ahead');
$receiver->wait_for('moved', requests => 4);
wait_for_pass($node);
is($receiver->sorted_numbers('moved'), '3 4 5 6', 'what has not been sent goes to the new URL');
is(scalar(grep { $_->{verified} ne '1' } $receiver->requests('moved')), 0, 'with the new secret');
is($receiver->sorted_numbers('ahead'), '1 2', 'and not to the old one');

done_testing();
