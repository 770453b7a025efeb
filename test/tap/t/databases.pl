# Workers leave a database when a command needs it without sessions, and copies
# of an outbox send nothing until they are adopted.  If this fails, DROP
# DATABASE fails because of our workers, or a copy for testing sends real
# webhooks.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

use constant SOON_S => 20;		# without a wake-up the launcher takes 60 s

my $receiver = Receiver->start;
my $node = start_server('databases');

# A database with the extension and its workers.
sub create
{
	my ($db) = @_;
	sql("CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION idempotency');
	return wait_for_workers($node, $db);
}

sub identities
{
	my ($name) = @_;
	my %identities = map { $_->{id} =~ /^msg_([0-9a-f]+)_/; $1 => 1 } $receiver->requests($name, 'id');
	return keys %identities;
}

# --- DROP, RENAME, TEMPLATE

create('shop');
subscribe($node, $receiver, '/hold/shop', db => 'shop');
$node->safe_psql('shop', q(SELECT outbox_enqueue('t', '{"n": 1}')));
$receiver->wait_for('shop', requests => 1);
is(error_code($node, 'postgres', 'CREATE DATABASE copy TEMPLATE shop'), '',
	'CREATE DATABASE with a database that has workers as its template, with requests out');
sql(q(SET allow_in_place_tablespaces = on; CREATE TABLESPACE elsewhere LOCATION ''));
is(error_code($node, 'postgres', 'ALTER DATABASE shop SET TABLESPACE elsewhere'), '',
	'ALTER DATABASE SET TABLESPACE');
wait_for_workers($node, 'shop');
is(error_code($node, 'postgres', 'ALTER DATABASE shop RENAME TO store'), '',
	'ALTER DATABASE RENAME');
ok(wait_for_workers($node, 'store'), 'afterwards the workers come back');
$receiver->release('shop');
$node->safe_psql('store', q(SELECT outbox_enqueue('t', '{"n": 2}')));
$receiver->wait_for('shop', events => 2);
is($receiver->distinct_numbers('shop'), '1 2', 'and deliver what had been out');
is(scalar(identities('shop')), 1,
	'a renamed database is the same outbox, and its copy has sent nothing');

my $pid = worker_pid($node, 'relay', 'store');
sql('CREATE ROLE nobody LOGIN');
is(error_code($node, 'postgres', "SET ROLE nobody; $_"), '42501', "$_: not for everybody")
  for ('DROP DATABASE store', 'ALTER DATABASE store RENAME TO x', 'CREATE DATABASE x TEMPLATE store');
is(worker_pid($node, 'relay', 'store'), $pid,
	'who may not do that cannot drive the workers out by it');
sql("SET allow_in_place_tablespaces = on; CREATE TABLESPACE space LOCATION ''");
is(error_code($node, 'postgres', 'ALTER DATABASE store SET TABLESPACE space'), '',
	'ALTER DATABASE SET TABLESPACE');
ok(wait_for_workers($node, 'store'), 'from there the workers come back, too');
is(error_code($node, 'postgres', 'DROP DATABASE store'), '', 'DROP DATABASE');

create('brief') && sql('DROP DATABASE brief') for 1 .. 3;
create('brief') && sql('DROP DATABASE brief WITH (FORCE)');
sql('CREATE DATABASE brief');
$node->safe_psql('brief', 'CREATE EXTENSION idempotency');
is(error_code($node, 'postgres', 'DROP DATABASE brief'), '',
	'DROP DATABASE at once after CREATE EXTENSION');

# --- a new database with the OID of a dropped one, and the same OIDs in it

sub answers
{
	my $answers = $node->safe_psql('again', q(
		SELECT available FROM stock_level('hat');
		SELECT outcome FROM stock_reserve('hat', 6, 'too many');
		SELECT outcome FROM stock_reserve('hat', 5, 'all');
		SELECT stock_cancel('all');
		SELECT outbox_enqueue('t', '{}');
		SELECT outcome FROM idem_claim('key')));
	return $answers =~ s/\n/ /gr;
}

create('model');
$node->safe_psql('model', q(SELECT stock_receive('hat', 5)));
my $new = 'CREATE DATABASE again TEMPLATE model OID 100000';
for my $end ('DROP DATABASE again', 'DROP DATABASE again WITH (FORCE)')
{
	sql($new);
	wait_for_workers($node, 'again');
	my $expected = '5 insufficient reserved done 1 claimed';
	is(answers(), $expected, "a database with an OID of its own, to go by $end");
	$node->safe_psql('again', q(SELECT stock_receive('hat', 100); SELECT outbox_enqueue('t', '{}') FROM generate_series(1, 100)));
	is($node->safe_psql('again', 'SELECT sum(claimed) FROM idem_stats'), '1', 'it counts');
	my $guest = session($node, 'again');
	$guest->query_safe(q(BEGIN; SELECT stock_reserve('hat', 100, 'open')));
	is(error_code($node, 'postgres', 'DROP DATABASE again'), '55006', 'DROP DATABASE is refused while somebody is there');
	is($node->safe_psql('again', q(SELECT outcome FROM stock_reserve('hat', 6, 'too many'))), 'insufficient',
		'and then nothing is forgotten');
	$guest->query_safe('ROLLBACK') if $end !~ /FORCE/;
	$guest->quit if $end !~ /FORCE/;
	# A restarted launcher does not know that the database was dropped.
	sql('SELECT pg_terminate_backend(' . worker_pid($node, 'launcher') . ')') if $end =~ /FORCE/;
	sql($end);
	sql($new);
	eval { $guest->quit } if $end =~ /FORCE/;
	is($node->safe_psql('again', 'SELECT sum(claimed) FROM idem_stats'), '0', 'the next one with its OID has counted nothing');
	is(answers(), $expected, 'sells what it has itself, and its positions are its own');
	is($node->safe_psql('again', 'SELECT count(*) FROM stock_verify() WHERE NOT ok'), '0', 'its counters are right');
	ok(wait_for_workers($node, 'again'), 'and it has workers');
	sql('DROP DATABASE again');
}
sql('DROP DATABASE model');

# --- the copy

ok(wait_for_workers($node, 'copy'), 'a copy gets workers');
ok($node->wait_for_log(qr/WARNING:  outbox subscriptions are held because this database is a copy/),
	'and a warning says that it is held');
is($node->safe_psql('copy', 'SELECT state, reason FROM outbox_subscriptions'),
	'held|a copy of another database: see outbox_adopt()', 'the view says so, too');
$node->safe_psql('copy', q(SELECT outbox_enqueue('t', '{"n": 3}')));
wait_for_pass($node, 'copy');
$node->safe_psql('copy', 'SELECT outbox_adopt()');
$receiver->wait_for('shop', events => 4);
my %identity_of = map { $_->{id} => $_->{data}{n} } $receiver->requests('shop');
is($receiver->distinct_numbers('shop'), '1 1 2 3', 'after outbox_adopt it sends what it has');
is(scalar(identities('shop')), 2, 'under a new identity, and only then');
is($node->safe_psql('copy', 'SELECT state FROM outbox_subscriptions'), 'active',
	'it is not held any more');
my $identity = 'SELECT identity FROM outbox_home';
my $before = $node->safe_psql('copy', $identity);
$node->safe_psql('copy', 'UPDATE outbox_home SET system_identifier = 1');
is($node->safe_psql('copy', 'SELECT state FROM outbox_subscriptions'), 'held', 'pg_upgrade looks like a copy');
$node->safe_psql('copy', 'SELECT outbox_adopt(keep_identity => true)');
is($node->safe_psql('copy', "SELECT state, ($identity) FROM outbox_subscriptions"), "active|$before",
	'it can go on under its identity');
is(error_code($node, 'copy', 'SELECT outbox_adopt(NULL)'), '22004', 'yes or no');
sql('DROP DATABASE copy');

# --- templates

$node->safe_psql('template1', 'CREATE EXTENSION idempotency');
sql('CREATE DATABASE fresh');
my $start = time();
wait_for_workers($node, 'fresh');
cmp_ok(time() - $start, '<', SOON_S,
	'a database made from a template that has the extension gets workers soon');
is(sql("SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'template%'"), '0',
	'templates have none');
for (['IS_TEMPLATE true', 'IS_TEMPLATE false'], ['ALLOW_CONNECTIONS false', 'ALLOW_CONNECTIONS true'])
{
	my ($out, $in) = @$_;
	$start = time();
	sql("ALTER DATABASE fresh $out");
	ok(wait_for_no_workers($node, 'fresh'), "$out ends the workers");
	sql("ALTER DATABASE fresh $in");
	wait_for_workers($node, 'fresh');
	cmp_ok(time() - $start, '<', SOON_S, "$in brings them back, and either happens soon");
}
sql('CREATE DATABASE barred TEMPLATE fresh');
wait_for_workers($node, 'barred');
sql('ALTER DATABASE barred ALLOW_CONNECTIONS false');
is(error_code($node, 'postgres', 'DROP DATABASE barred'), '',
	'a database that allows no connections can be dropped');

# The server marks a database in this way when DROP DATABASE has begun.
sql(q(UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'fresh'));
$node->reload;
ok(wait_for_no_workers($node, 'fresh'), 'a database whose DROP was interrupted has no workers');
wait_for_workers($node);
is(error_code($node, 'postgres', 'DROP DATABASE fresh'), '', 'and DROP can finish it');

# --- more databases without the extension than there are entries, for commands
# that need them without sessions

my $others = 'FROM generate_series(1, 130) n \gexec';
sql(<<EOF);
SELECT format('CREATE DATABASE other%s TEMPLATE template0 STRATEGY file_copy ALLOW_CONNECTIONS false', n) $others
SELECT format('ALTER DATABASE other%s RENAME TO another%s', n, n) $others
EOF
sql('CREATE DATABASE late');	# a copy of template1
ok(wait_for_workers($node, 'late'), 'they take no place from those that have it');
sql('DROP DATABASE late');

# --- the server has no errors

is(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency %'"), '3',
	'the workers of the remaining database and the launcher are left');
# A worker may be started for a database that is dropped at that moment.
my @fatal = slurp_file($node->logfile) =~ /^.*(?:FATAL|PANIC):.*$/mg;
is(join("\n", grep { !/terminating|not currently accepting|database \d+ does not exist/ } @fatal), '',
	'no worker has failed on the way');

done_testing();
