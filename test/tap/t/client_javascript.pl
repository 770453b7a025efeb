# The npm library idempotency-pg of clients/javascript: its own tests, on a real
# server, with both drivers and three web frameworks, with processes that are
# killed, connections that break and a server that restarts.  If this fails, an
# application that uses it does its work twice, or never.
#
# Needs: clients/javascript/node_modules

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use Program;
use Server;
use Test::More;

use constant RUN_S => 600;

my $tests = abs_path("$FindBin::RealBin/../../../clients/javascript/test");
my $node = start_server('client', internal_path => 0, conf => 'max_connections = 200');

sql(<<'END');
CREATE ROLE shop LOGIN;
SELECT idempotency_grant('shop');
CREATE TABLE notes (note text PRIMARY KEY);
CREATE TABLE effects (id text NOT NULL, note text);
GRANT INSERT ON effects TO shop;
END

my %env = (as_shop($node), ADMIN => sql('SELECT current_user'), SERVER_DATA => $node->data_dir, SERVER_LOG => $node->logfile);

# Runs a file of tests; each of its tests counts as one here.
sub run_file
{
	my ($file) = @_;
	my ($stdout, $stderr) = ('', '');

	local %ENV = (%ENV, %env);
	my $ended = eval {
		IPC::Run::run([ qw(setpriv --pdeathsig KILL node --test-reporter=tap), "$tests/$file" ],
			'<', \undef, '>', \$stdout, '2>', \$stderr, IPC::Run::timeout(RUN_S));
		1;
	};
	my $status = $ended ? $? : $@;
	my $before = Test::More->builder->current_test;
	ok($1 eq 'ok' && $2 !~ /# (?:SKIP|TODO)/, "$file: $2") while $stdout =~ /^ *(ok|not ok) \d+ - (.*)$/mg;
	cmp_ok(Test::More->builder->current_test, '>', $before, "$file: it has tests");
	is($status, 0, "$file: all have passed") or diag($stdout, $stderr);
	return;
}

run_file($_) for qw(claims.test.js key.test.js webhooks.test.js readme.test.js package.test.js);

done_testing();
