# Shoppers: the clients of proxy_clients.js, which place orders over a proxy or
# a coordinator, and the comparison of their answers with the orders that exist.
#
# Needs: docs/recipes/node_modules

package Shoppers;

use strict;
use warnings FATAL => 'all';

use FindBin;
use JSON::PP;
use Program;
use Test::More;
use Time::HiRes qw(sleep time);

use constant { CLIENTS => 6, CUSTOMERS => 60, STEPS => 60, DEADLINE_S => 120, PAUSE_S => 0.05 };

# Connects to a database, as the environment of psql says.
sub start
{
	my ($class, %env) = @_;
	my $program = Program->start([ 'node', "$FindBin::RealBin/../programs/proxy_clients.js" ],
		CLIENTS => CLIENTS, CUSTOMERS => CUSTOMERS, PGUSER => scalar(getpwuid($<)), %env)->wait_for_start('started');
	return bless { program => $program }, $class;
}

sub _answered
{
	my ($self) = @_;
	$self->{program}->say('counts');
	return $self->{program}->line('counts') =~ s/counts //r;
}

# More orders get their answers.
sub get_on
{
	my ($self, $what) = @_;
	my $before = $self->_answered;
	my $until = time + DEADLINE_S;

	while ($self->_answered < $before + STEPS)
	{
		die "no orders are placed after $what" if time > $until;
		sleep PAUSE_S;
	}
	return pass("orders are placed after $what");
}

sub stop
{
	my ($self) = @_;
	$self->{program}->say('stop');
	$self->{ledger} = decode_json($self->{program}->line('stopped') =~ s/^stopped //r);
	$self->{program}->stop;
	return;
}

# Tests that the orders are those of the answers.  Rows are "request|id".
sub check
{
	my ($self, @rows) = @_;
	my $answers = $self->{ledger}{answers};
	my %placed;

	for my $row (@rows)
	{
		my ($request, $id) = split /\|/, $row;
		push @{ $placed{$request} }, $id;
	}
	is("@{$self->{ledger}{different}}", '', 'each repeated request gets the same answer');
	is(join(' ', grep { @{ $placed{$_} } > 1 } keys %placed), '', 'no order is placed twice');
	is(join(' ', grep { ($placed{$_}[0] // '') ne $answers->{$_} } keys %$answers), '', 'each answer is true');
	is(scalar(keys %placed), scalar(keys %$answers), 'each order has an answer');
	return;
}

# Tests that the receiver gets an event for each of so many orders, under one
# id, whatever the subscription.
sub check_events
{
	my ($self, $receiver, $orders, @subscriptions) = @_;
	my $until = time + DEADLINE_S;
	my %sent;

	do
	{
		sleep PAUSE_S;
		%sent = ();
		$sent{ $_->{data}{order} }{ $_->{id} } = 1 for map { $receiver->requests($_, qw(id data)) } @subscriptions;
	} until (keys %sent >= $orders || time > $until);
	is(scalar(keys %sent), $orders, 'the event of each order is sent, and no other');
	is(scalar(grep { keys %$_ > 1 } values %sent), 0, 'each under one id');
	return;
}

1;
