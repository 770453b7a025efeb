# Receiver: starts receiver.js and asks it what has arrived.
#
# The receiver does all waiting: it answers as soon as the condition holds, or
# when the time is over.
#
# Needs: nodejs test/tap/node_modules

package Receiver;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(PLANTED planted_secret);
our @EXPORT_OK = qw(events);

use constant WAIT_S => 180;

# Text that must be in no log of a server.  It is in every secret of a test and
# is also valid base64; test/run searches for it.
use constant PLANTED => 'PlantedSecret';

my $program = abs_path(dirname(__FILE__) . '/../programs/receiver.js');

# With a file, it writes what arrives to that instead of keeping it.
sub start
{
	my ($class, @file) = @_;
	my $self = bless { stdin => '', stdout => '', stderr => '' }, $class;

	$self->{run} = IPC::Run::start([ 'node', $program, @file ],
		'<', \$self->{stdin}, '>', \$self->{stdout}, '2>', \$self->{stderr});
	pump_until($self->{run}, IPC::Run::timeout(WAIT_S),
		\$self->{stdout}, qr/\d+\n/)
	  or die "the receiver did not start: $self->{stderr}";
	chomp($self->{port} = $self->{stdout});
	$self->{http} = HTTP::Tiny->new(timeout => 2 * WAIT_S);
	return $self;
}

# The URL that a subscription sends to, as in url('/ok/shop').
sub url
{
	my ($self, $path) = @_;
	return "http://127.0.0.1:$self->{port}$path";
}

sub _ask
{
	my ($self, $method, $path, $content) = @_;
	my $answer = $self->{http}
	  ->request($method, $self->url($path), { content => $content // '' });

	die "$method $path: $answer->{status} $answer->{content}"
	  unless $answer->{success};
	return JSON::PP->new->utf8->allow_nonref->decode($answer->{content});
}

# Returns a new unique secret with the planted text.
sub planted_secret
{
	return 'whsec_' . PLANTED . 'Abc' . encode_base64(join('', map { chr(rand(256)) } 1 .. 24), '');
}

# Makes a secret; the receiver verifies requests of that name with it.
sub new_secret
{
	my ($self, $name) = @_;
	return $self->set_secret($name, planted_secret());
}

sub set_secret
{
	my ($self, $name, $secret) = @_;
	$self->_ask('PUT', "/secret/$name", $secret);
	return $secret;
}

# Sets the behaviour of /switch/NAME.
sub switch
{
	my ($self, $name, $behaviour) = @_;
	return $self->_ask('PUT', "/switch/$name", $behaviour);
}

# From now on it accepts everything.
sub heal
{
	my ($self) = @_;
	return $self->_ask('POST', '/heal/all');
}

# Answers the requests that /hold/NAME holds.
sub release
{
	my ($self, $name) = @_;
	return $self->_ask('POST', "/release/$name");
}

# All requests of that name, in the order of arrival; in scalar context, their
# number.  With names of fields, each has only these, and that of "data.n" is n:
# whole requests take many seconds to parse if there are thousands.
sub requests
{
	my ($self, $name, @fields) = @_;
	my $fields = @fields ? '?fields=' . join(',', @fields) : '';

	return $self->_ask('GET', "/count/$name") unless wantarray;
	return @{ $self->_ask('GET', "/log/$name$fields") };
}

# Waits for a number of requests of that name, or of different events.  The test
# fails if they do not come.
sub wait_for
{
	my ($self, $name, $what, $count, $seconds) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $ms = 1000 * ($seconds // WAIT_S);

	return 1 if $self->_ask('GET', "/wait/$name?$what=$count&ms=$ms");
	my $have = $self->requests($name);
	fail("$name gets $count $what");
	diag("it has $have requests");
	return 0;
}

# The field "n" of the data of all requests of that name, as one string.
sub numbers
{
	my ($self, $name) = @_;
	return join(' ', map { $_->{n} // '-' } $self->requests($name, 'data.n'));
}

# The same, sorted, for events in any order.
sub sorted_numbers
{
	my ($self, $name) = @_;
	return join(' ', sort { $a <=> $b } split(/ /, $self->numbers($name)));
}

# The same, sorted and without duplicates.
sub distinct_numbers
{
	my ($self, $name) = @_;
	my %by_id = map { $_->{id} => $_->{n} } $self->requests($name, qw(id data.n));
	return join(' ', sort { $a <=> $b } values %by_id);
}

# How many milliseconds after their enqueuing the events of Server.pm's
# enqueue_steadily arrived, in the order of arrival.
sub delays_ms
{
	my ($self, $name) = @_;
	my @timed = grep { $_->{attempt} == 1 && $_->{data}{at} } $self->requests($name, qw(attempt at data));
	return map { $_->{at} - $_->{data}{at} } @timed;
}

# The events of a request: it is one, or has several in batched mode.
sub events
{
	my ($request) = @_;
	return @{ $request->{events} // [$request] };
}

# How often an event was sent before all earlier ones of its key had been
# accepted, or stood before it in the same request.  The data of events is
# {"key": ..., "n": ...}, n counted from 1 in each.
sub overtakings
{
	my ($self, $name) = @_;
	my (%accepted, $count);

	for my $request ($self->requests($name, qw(status data events)))
	{
		my %sent = %accepted;

		for my $event (events($request))
		{
			my ($key, $n) = @{ $event->{data} }{qw(key n)};
			$count++ if ($sent{$key} // 0) < $n - 1;
			$sent{$key} = $n if $n > ($sent{$key} // 0);
		}
		%accepted = %sent if $request->{status} == 200;
	}
	return $count // 0;
}

sub stop
{
	my ($self) = @_;
	$self->{run}->kill_kill if $self->{run};
	delete $self->{run};
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $@);
	eval { $self->stop };
	return;
}

1;
