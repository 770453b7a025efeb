# StopAtFailure: ends a test with its first failure, since one is enough to
# notice a mutant.  To be loaded by PERL5OPT.

package StopAtFailure;

use strict;
use warnings FATAL => 'all';

use Test::Builder;
use Test2::API qw(test2_stack);

# A second later by a signal, so that it says before what is wrong.  What it has
# started is ended by test/lib/mutants.
sub end_soon
{
	my ($hub, $event) = @_;
	return if $event->can('effective_pass') && $event->effective_pass || !$event->can('pass');
	$SIG{ALRM} = 'DEFAULT';
	alarm(1);
	return;
}

test2_stack()->top->listen(\&end_soon, inherit => 1);

1;
