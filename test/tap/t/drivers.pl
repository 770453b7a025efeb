# Every driver that we know of calls the functions by plain positional
# parameters, without casts where its section of docs/drivers.md does not ask
# for one, and the example there does what the page says.  If this fails, an
# application that is written so does not run.
#
# All drivers print the same lines.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use Page;
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;

use constant BUILD_S => 300;
use constant RUN_S => 60;

my $programs = "$FindBin::RealBin/../programs/drivers";
my $dir = PostgreSQL::Test::Utils::tempdir;
my $page = Page->load('drivers.md');

my $steps = <<'END';
claim: claimed 1
claim again: in_progress
claim for another request: mismatch
replay: completed 17 Grüße, 漢字
claim many: key completed, new claimed
enqueue: true
reserve: reserved
reserve by three parameters: reserved
reserve many: reserved
shortage: insufficient hat 100 6 94, scarf 1 0 1
confirm: done
status: open, hat confirmed, scarf open
lost lease: ID001
level: 6 3
checkout: reserved
checkout again: reserved
checkout of another order: mismatch
checkout of too much: insufficient
END

# --- a server, and a database for each driver; nobody sweeps there or relays

my $node = start_server('drivers', conf => "idempotency.databases = 'postgres'");
sql('CREATE ROLE shop LOGIN');
sql('ALTER ROLE shop SET search_path = "$user", public');

sub create_database
{
	my ($db) = @_;
	sql("CREATE DATABASE $db");
	sql('CREATE EXTENSION idempotency', $db);
	sql("SELECT idempotency_grant('shop')", $db);
	sql("SELECT stock_receive(sku, quantity) FROM (VALUES ('hat', 10), ('scarf', 2), ('cup', 10), ('plate', 10))"
		  . ' AS item (sku, quantity)', $db);
	return;
}

# The example of a section.
sub example
{
	my ($section) = @_;
	my ($text) = $page->{text} =~ /^## \Q$section\E\n(.*?)(?=^## |\z)/ms or die "no section $section";
	my ($example) = $text =~ /^```\w+\n(.*?)^```$/ms or die "no example for $section";
	return $example;
}

# Runs a command with variables in its environment, and returns what it prints.
sub output_of
{
	my ($env, $timeout, @command) = @_;
	my ($stdout, $stderr);

	local %ENV = (%ENV, %$env);
	IPC::Run::run([ qw(setpriv --pdeathsig KILL), @command ], '<', \undef,
		'>', \$stdout, '2>', \$stderr, IPC::Run::timeout($timeout));
	diag("@command: $stderr") if $? != 0;
	return $stdout;
}

# What must be in the database when all steps are done.
sub check_database
{
	my ($name, $db) = @_;

	is(sql("SELECT topic, jsonb_typeof(payload), payload ->> 'note', key, type, headers, deliver_at"
			  . " FROM outbox_log WHERE key = 'ann'", $db),
		'order.placed|object|Grüße, 漢字|ann|order|{"X-Shop": "hats"}|2040-01-02 03:04:05+00',
		"$name: the event is as it was given");
	is(sql("SELECT topic, payload FROM outbox_log WHERE key LIKE 'order-%'", $db),
		'order.placed|{"cup": 2, "plate": 2}', "$name: the example enqueues one event");
	is(sql("SELECT outcome, jsonb_typeof(response), response FROM idem_claim('order-2', 'checkout')", $db),
		'completed|object|{"outcome": "insufficient"}', "$name: its answer is an object");
	is(sql("SELECT expires_at - now() BETWEEN '1 h 50 min' AND '2 h' FROM stock_reservation_status('one')", $db),
		't', "$name: the ttl is as it was given");
	is(sql("SELECT sku, available, reserved FROM stock_levels WHERE sku IN ('cup', 'plate') ORDER BY sku", $db),
		"cup|8|2\nplate|8|2", "$name: the order is reserved once");
	return;
}

# try_driver(NAME, SECTION of the page, FILE for its example, COMMAND): the
# command is given the name and the file.
sub try_driver
{
	my ($name, $section, $file, @command) = @_;
	my $db = "shop_$name";

	create_database($db);
	mkdir "$dir/$db";
	append_to_file("$dir/$db/$file", example($section));
	is(output_of({ as_shop($node, $db) }, RUN_S, @command, $name, "$dir/$db/$file"), $steps, "$name: all steps");
	check_database($name, $db);
	return;
}

$page->check_links;

# --- Node

try_driver('pg', 'node-postgres', 'checkout.js', 'node', "$programs/node.js");
try_driver('postgres', 'postgres.js', 'checkout.js', 'node', "$programs/node.js");

# --- Python, as Debian packages it: there may be another one in the path

my @python = ('/usr/bin/python3', '-B', "$programs/python.py");
try_driver('psycopg', 'psycopg 3', 'checkout.py', @python);
try_driver('psycopg2', 'psycopg2', 'checkout.py', @python);
try_driver('sqlalchemy', 'SQLAlchemy', 'checkout.py', @python);
try_driver('asyncpg', 'asyncpg', 'checkout.py', @python);

done_testing();
