# Publisher: the test of a program of docs/recipes that publishes the events of
# a subscription to a broker, while producers, the broker and the program crash.
#
# A broker is an object with kill() and start_again(), or methods in place of them.
# A function returns its messages, as hashes of id, topic, type, key and payload;
# those of a key are in their order.
#
# Needs: docs/recipes/node_modules

package Publisher;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use FindBin;
use IPC::Run qw(run);
use JSON::PP;
use Program;
use Server;
use Test::More;

our @EXPORT = qw(start_publisher check_publisher declare_messages read_messages);

use constant { EVENTS => 400, KEYS => 8, BATCH => 20, LEASE_S => 2 };

my $node;
my %program;

sub _run_messages
{
	my ($command, $broker) = @_;
	my ($output, $errors);
	run [ 'node', "$FindBin::RealBin/../programs/broker_messages.js", $command, $broker->url ], '>', \$output, '2>', \$errors
	  or die "$command: $errors";
	my @lines = split /\n/, $output;
	pop @lines eq 'done' or die "$command: $errors";
	return map { decode_json($_) } @lines;
}

# Makes the queue or stream.
sub declare_messages
{
	my ($broker) = @_;
	_run_messages('declare', $broker);
	return;
}

sub read_messages
{
	my ($broker) = @_;
	return _run_messages('read', $broker);
}

# Starts a server with a subscription, and the program.
sub start_publisher
{
	my ($file, %env) = @_;
	$node = start_server('shop', internal_path => 0);
	sql(<<'EOF');
CREATE ROLE shop LOGIN;
SELECT idempotency_grant_reader('shop');
SELECT outbox_subscribe('broker', url => NULL, topics => '{order.*,stray.*}', retry_schedule => '{0 s, 100 ms, 100 ms, 100 ms}');

-- Of each ten transactions one rolls back.
CREATE PROCEDURE produce(first integer, last integer, keys integer) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN first .. last LOOP
		PERFORM outbox_enqueue('order.placed', jsonb_build_object('n', n), key => format('customer-%s/%s', n % keys / 2, n % keys), type => 'placed');
		IF n % 10 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
		PERFORM pg_sleep(0.004);
	END LOOP;
END
$$;
EOF
	%program = (file => $file, env => { as_shop($node), MAX_EVENTS => BATCH, LEASE_S => LEASE_S, CONFIRM_S => 1, %env });
	return _start();
}

sub _start
{
	$program{running} = start_recipe($program{file}, %{ $program{env} })->wait_for_start('publishing');
	return $node;
}

# Waits until the program has acknowledged a number of further batches, of which
# no event was refused.
sub _wait_for_batches
{
	my ($count, $what) = @_;
	my @batches = map { $program{running}->line('published') } 1 .. $count;
	return is(scalar(grep { /refused 0$/ } @batches), $count, $what) || diag(@batches);
}

sub _wait_until_all_is_published
{
	my ($what) = @_;
	return wait_until($node, q(SELECT lag_events = 0 AND waiting = 0 AND parked = 0 AND in_flight = 0
		FROM outbox_subscriptions WHERE name = 'broker'), $what);
}

# Crashes the broker and the program while events are enqueued and published.
sub _crash_all
{
	my ($broker, $kill, $start_again) = @_;
	my $producer = session($node);

	$producer->query_until(qr/produces/, "\\echo produces\nCALL produce(1, ${\EVENTS}, ${\KEYS});\n\\echo produced\n");
	_wait_for_batches(3, 'events are published');
	$broker->$kill;
	$broker->$start_again;
	_wait_for_batches(2, 'after a crash of the broker it goes on');
	$program{running}->crash;
	_start();
	_wait_for_batches(2, 'after a crash of the program it goes on');
	$broker->$kill;
	$program{running}->crash;
	$broker->$start_again;
	_start();
	$producer->query_until(qr/produced/, '');
	$producer->quit;
	return _wait_until_all_is_published('all is published after a crash of both');
}

# Restarts the database server under the program, and publishes some events for a
# second time.  Then SIGTERM ends the program.
sub _restart_and_stop
{
	my ($last) = @_;
	my $replayed = $last - 9;
	$node->stop('immediate');
	$node->start;
	sql("CALL produce(${\EVENTS} + 1, $last, ${\KEYS})");
	_wait_until_all_is_published('it goes on after a crash of the database server');
	sql(qq(SELECT outbox_replay('broker', position) FROM outbox_log WHERE type = 'placed' AND payload->>'n' = '$replayed'));
	_wait_until_all_is_published('so are events that are replayed');
	$program{running}->signal('TERM');
	return ok($program{running}->wait_for_end, 'SIGTERM ends it');
}

# Checks what has arrived: all that was committed, in order, nothing else.
sub _check_messages
{
	my ($last, $repeats_max, @messages) = @_;
	my (%arrived, %last_of, @disorder);

	for my $message (grep { $_->{type} eq 'placed' } @messages)
	{
		my $n = $message->{payload}{n};
		next if $arrived{ $message->{id} }++;
		push @disorder, "$message->{key}: $n" if $n < ($last_of{ $message->{key} } // 0);
		$last_of{ $message->{key} } = $n;
	}
	my $ids = sql(q(SELECT string_agg(outbox_event_id(position), ' ' ORDER BY outbox_event_id(position) COLLATE "C")
		FROM outbox_log WHERE type = 'placed'));
	is(join(' ', sort keys %arrived), $ids, 'each event has arrived, and nothing that was rolled back')
	  || diag('missing: ' . join(' ', grep { !$arrived{$_} } split / /, $ids),
		"\ndead: " . sql('SELECT position, attempts, last_error FROM outbox_dead'));
	is(scalar(keys %arrived), $last - int($last / 10), 'these are all that were committed');
	is("@disorder", '', 'those of a key have arrived first in their order');
	my %copies = map { $_->{id} => 1 } @messages;
	my $repeats = @messages - keys %copies;
	cmp_ok($repeats, '<=', $repeats_max, "only what was in flight is there twice ($repeats)");
	return;
}

# Enqueues one event that the broker refuses between others.
sub check_refused
{
	my ($what, $messages, %event) = @_;
	my $key = "$what/1";
	my $event = sub { "SELECT outbox_enqueue('$_[0]', $_[1], key => '$_[2]', type => '$what');" };

	sql(join("\n", 'BEGIN;', $event->('order.ok', q('1'), $key),
		$event->($event{topic} // 'order.bad', $event{payload} // q('2'), $key),
		$event->('order.ok', q('3'), $key), $event->('order.ok', q('4'), "$what/2"), 'COMMIT;'));
	is($program{running}->line('published 2 refused 2'), 'published 2 refused 2', "$what: the next of its key waits for it");
	_wait_until_all_is_published("$what: all others are published");
	is(sql(qq(SELECT count(*) FROM outbox_dead JOIN outbox_log USING (position) WHERE outbox_log.type = '$what')), '1',
		"$what: it is a dead letter");
	my %copies;
	my @arrived = grep { $_->{type} eq $what && !$copies{ $_->{id} }++ } $messages->();
	is(join(' ', map { $_->{payload} } grep { $_->{key} eq $key } @arrived), '1 3',
		"$what: the others of its key have arrived, in order");
	is(scalar(grep { $_->{key} ne $key } @arrived), 1, "$what: that of another key, too");
	return;
}

# The whole test. Parameters: messages, the function; refused, events that the
# broker refuses, by the reason; repeats, how many copies there may be in all;
# kill and start_again, the names of methods of the broker.
sub check_publisher
{
	my ($broker, %params) = @_;
	my $last = EVENTS + 50;

	_crash_all($broker, $params{kill} // 'kill', $params{start_again} // 'start_again');
	check_refused($_, $params{messages}, %{ $params{refused}{$_} }) for sort keys %{ $params{refused} };
	_restart_and_stop($last);
	_check_messages($last, $params{repeats} // 4 * BATCH, $params{messages}->());
	return;
}

1;
