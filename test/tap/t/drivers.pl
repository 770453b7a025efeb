# Every driver in docs/drivers.md can call the functions with plain positional
# parameters, with casts only where its section asks for them, and the example
# there, or in the file that it names, works as described.  If this fails, an
# application written like that does not work.
#
# All drivers print the same lines.
#
# Needs: python3-psycopg2 python3-psycopg python3-asyncpg python3-sqlalchemy default-jdk-headless
# Needs: libpostgresql-jdbc-java golang-go golang-github-lib-pq-dev golang-github-jackc-pgx-v4-dev
# Needs: ruby ruby-pg libdbd-pg-perl clients/javascript/node_modules docs/recipes/node_modules
# Needs: test/tap/programs/drivers/node_modules

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

use constant { BUILD_S => 300, RUN_S => 60 };

my $programs = "$FindBin::RealBin/../programs/drivers";
my $docs = "$FindBin::RealBin/../../../docs";
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

# --- a server, and a database for each driver, without workers

my $node = start_server('drivers', conf => <<'END');
idempotency.databases = 'postgres'
listen_addresses = '127.0.0.1'	# JDBC has no sockets
END
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

# The example of a section, or of the file that it names instead.
sub example
{
	my ($section) = @_;
	my ($text) = $page->{text} =~ /^## \Q$section\E\n(.*?)(?=^## |\z)/ms or die "no section $section";
	my ($file) = $text =~ m{\]\((recipes/checkout[^)]*)\)}i;
	my ($example) = $file ? slurp_file("$docs/$file") : $text =~ /^```\w+\n(.*?)^```$/ms;
	return $example // die "no example for $section";
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

# Puts the example of a section into a file, and returns its name.
sub save_example
{
	my ($section, $file) = @_;

	append_to_file("$dir/$file", example($section));
	return "$dir/$file";
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

# try_driver(NAME, COMMAND): runs the program in a database of its own, and
# checks its output and what it has left in the database.
sub try_driver
{
	my ($name, @command) = @_;
	my $db = "shop_$name";

	create_database($db);
	is(output_of({ as_shop($node, $db) }, RUN_S, @command), $steps, "$name: all steps");
	check_database($name, $db);
	return;
}

# README's first statements, one a line.
my $pasted = "$dir/readme.sql";
my ($first_block) = Page->load('../README.md')->blocks('sql');
append_to_file($pasted, join('', map { s/; *--.*/;/r . "\n" } grep { $_ ne '' } split /\n/, $first_block));

# Runs them in an empty database, as a new user would who owns it.
sub try_readme
{
	my ($name, @command) = @_;
	my $db = "readme_$name";

	sql("CREATE DATABASE $db");
	is(output_of({ as_shop($node, $db), PGUSER => sql('SELECT current_user') }, RUN_S, @command, $pasted),
		"executed\n", "$name: README's first statements");
	is(sql("SELECT available, reserved, sku, quantity, topic, (SELECT outcome FROM idem_claim('request-4711'))"
			  . " FROM stock_levels JOIN orders USING (sku) JOIN outbox_log ON key = id", $db),
		'98|2|hat|2|order.placed|completed', "$name: all of them were committed");
	return;
}

$page->check_links;

# --- Node

my @node = ('node', "$programs/node.js");
try_driver('pg', @node, 'pg', save_example('node-postgres', 'pg.js'));
try_driver('postgres', @node, 'postgres', save_example('postgres.js', 'postgres.js'));
try_readme($_, @node, $_) for qw(pg postgres);

# Prisma's client is generated, and has no engine.  The command would download
# engines all the same, if it were not told that they exist.
output_of({ PRISMA_SCHEMA_ENGINE_BINARY => '/bin/true', PRISMA_QUERY_ENGINE_LIBRARY => '/bin/true',
		CHECKPOINT_DISABLE => 1, PRISMA_HIDE_UPDATE_MESSAGE => 1 },
	BUILD_S, "$programs/node_modules/.bin/prisma", 'generate', '--schema', "$programs/schema.prisma");
try_driver('prisma', @node, 'prisma', save_example('Prisma', 'prisma.js'));

# --- Python, as packaged by Debian; PATH may have another one first

my @python = ('/usr/bin/python3', '-B', "$programs/python.py");
try_driver('psycopg', @python, 'psycopg', save_example('psycopg 3', 'example_psycopg.py'));
try_driver('psycopg2', @python, 'psycopg2', save_example('psycopg2', 'example_psycopg2.py'));
try_driver('sqlalchemy', @python, 'sqlalchemy', save_example('SQLAlchemy', 'example_sqlalchemy.py'));
try_driver('asyncpg', @python, 'asyncpg', save_example('asyncpg', 'example_asyncpg.py'));
try_readme($_, @python, $_) for qw(psycopg psycopg2 sqlalchemy asyncpg);

# --- Java, with casts and without

my $java = save_example('JDBC', 'Checkout.java');
output_of({}, BUILD_S, 'javac', '-encoding', 'UTF-8', '-d', $dir, "$programs/Jdbc.java", $java);
my @java = ('java', '-cp', "$dir:/usr/share/java/postgresql.jar", 'Jdbc');
try_driver('jdbc', @java, 'jdbc');
try_driver('jdbc_unspecified', @java, 'unspecified');
try_readme('jdbc', @java, 'jdbc');

# --- Go, with Debian's packages, since nothing may be downloaded; the files of a
# program have to be in one directory

my $go = save_example('Go', 'checkout.go');
append_to_file("$dir/$_.go", slurp_file("$programs/$_.go")) for qw(golang libpq pgx);
for my $driver (qw(libpq pgx))
{
	output_of({ GO111MODULE => 'off', GOFLAGS => '', GOPATH => '/usr/share/gocode', GOCACHE => "$dir/cache" },
		BUILD_S, 'go', 'build', '-o', "$dir/$driver", "$dir/golang.go", "$dir/$driver.go", $go);
	try_driver($driver, "$dir/$driver");
	try_readme($driver, "$dir/$driver");
}

# --- Ruby and Perl

try_driver('ruby', '/usr/bin/ruby', "$programs/ruby.rb", 'ruby', save_example('Ruby', 'checkout.rb'));
try_driver('dbd_pg', 'perl', "$programs/dbd_pg.pl", 'dbd_pg', save_example('Perl', 'checkout.pl'));
try_readme('ruby', '/usr/bin/ruby', "$programs/ruby.rb", 'ruby');
try_readme('dbd_pg', 'perl', "$programs/dbd_pg.pl", 'dbd_pg');

done_testing();
