# Our C code writes to some tables without the executor, so what an
# administrator adds to them - a constraint, a rule, a policy, a child, a column
# - is refused at once, by its name and with a hint.  On our other tables, and
# for unique keys, it is enforced.  What was added while the library was not
# preloaded is found by idempotency_status().  If this fails, a constraint holds
# for some rows only, with no message, or a foreign key stops the sweeper hours
# later.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Server;
use Test::More;

my $node = start_server('alterations');

sql(q(
	CREATE TABLE parent (key text PRIMARY KEY);
	CREATE TABLE parted (LIKE idem_key_0) PARTITION BY LIST (key);
	CREATE TABLE child (LIKE outbox_log_1 INCLUDING ALL);
	CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
	CREATE SCHEMA other;
	CREATE TABLE other.stock_log (id bigint PRIMARY KEY, note text)));

# What is refused: the statement, what the message says of it, what status says
# of it, and what undoes it.
my @refused = (
	[ q(ALTER TABLE idem_key_0 ADD CONSTRAINT short CHECK (length(key) < 5)), 'constraint "short"', 'constraint short of idem_key_0',
		'ALTER TABLE idem_key_0 DROP CONSTRAINT short' ],
	[ q(ALTER TABLE stock_log ADD CONSTRAINT noted CHECK (note <> '') NOT VALID), 'constraint "noted"', 'constraint noted of stock_log',
		'ALTER TABLE stock_log DROP CONSTRAINT noted' ],
	[ q(ALTER TABLE outbox_log_2 ADD CONSTRAINT known FOREIGN KEY (key) REFERENCES parent), 'constraint "known"', 'constraint known of outbox_log_2',
		'ALTER TABLE outbox_log_2 DROP CONSTRAINT known' ],
	[ q(CREATE TABLE refers (position bigint CONSTRAINT sent REFERENCES outbox_log_0 (position))), 'foreign key "sent" cannot refer to table "outbox_log_0"',
		'foreign key sent of public.refers', 'DROP TABLE refers' ],
	[ q(ALTER TABLE outbox_log_1 ALTER key SET NOT NULL), 'a NOT NULL constraint', 'NOT NULL of outbox_log_1.key', 'ALTER TABLE outbox_log_1 ALTER key DROP NOT NULL' ],
	[ q(CREATE RULE logged AS ON INSERT TO stock_hold DO ALSO NOTHING), 'rule "logged"', 'rule logged of stock_hold', 'DROP RULE logged ON stock_hold' ],
	[ q(ALTER TABLE stock_item ENABLE ROW LEVEL SECURITY), 'row security', 'row security of stock_item', 'ALTER TABLE stock_item DISABLE ROW LEVEL SECURITY' ],
	[ q(ALTER TABLE stock_item FORCE ROW LEVEL SECURITY), 'row security', '', 'ALTER TABLE stock_item NO FORCE ROW LEVEL SECURITY' ],
	[ q(CREATE POLICY own ON stock_queue USING (sku = current_user)), 'policy "own"', 'policy own of stock_queue', 'DROP POLICY own ON stock_queue' ],
	[ q(CREATE TRIGGER fires AFTER INSERT ON stock_history_1 FOR EACH ROW EXECUTE FUNCTION fires()), 'create a trigger',
		'trigger fires of stock_history_1', 'DROP TRIGGER fires ON stock_history_1' ],
	[ q(CREATE CONSTRAINT TRIGGER later AFTER INSERT ON idem_key_2 DEFERRABLE FOR EACH ROW EXECUTE FUNCTION fires()), 'create a trigger',
		'trigger later of idem_key_2', 'DROP TRIGGER later ON idem_key_2' ],
	[ q(CREATE TABLE heir () INHERITS (idem_key_1)), 'a child', 'child public.heir of idem_key_1', 'DROP TABLE heir' ],
	[ q(ALTER TABLE child INHERIT outbox_log_1), 'a child', 'child public.child of outbox_log_1', 'ALTER TABLE child NO INHERIT outbox_log_1' ],
	[ q(ALTER TABLE stock_in_doubt ADD COLUMN shelf text), 'a column', 'columns of stock_in_doubt', undef ],
	[ q(ALTER TABLE outbox_history_0 ADD COLUMN day text GENERATED ALWAYS AS (topic || type) STORED), 'a column', 'columns of outbox_history_0', undef ],
);
for my $refused (@refused)
{
	my ($statement, $what) = @$refused;
	my ($code, $stdout, $stderr) = $node->psql('postgres', $statement);

	like($stderr, qr/ERROR: .*\Q$what\E.* of extension idempotency\n.*DETAIL: .*\n.*HINT: /s, $statement);
	is(error_code($node, 'postgres', $statement), '55000', 'the same, its SQLSTATE');
}
like(($node->psql('postgres', 'ALTER TABLE parted ATTACH PARTITION idem_key_0 DEFAULT'))[2], qr/bounds of a partition/, 'no partition either');

is(error_code($node, 'postgres', 'ALTER TABLE stock_queue ALTER ttl_us TYPE numeric'), '55000', 'nor another type of a column');

# --- what is not refused

is(error_code($node, 'postgres', $_), '', $_) for (
	'CREATE TABLE orders (sku text COLLATE "C" REFERENCES stock_item (sku))',
	'CREATE UNIQUE INDEX one ON stock_hold (id, line); DROP INDEX one',
	'ALTER TABLE stock_queue ADD CONSTRAINT apart EXCLUDE (id WITH =); ALTER TABLE stock_queue DROP CONSTRAINT apart',
	'ALTER TABLE stock_log ALTER note SET STATISTICS 10',
	'ALTER TABLE stock_log SET (fillfactor = 90)',
	'ALTER TABLE stock_log ALTER note DROP NOT NULL',
	'ALTER TABLE outbox_partition ADD CONSTRAINT low CHECK (position < 1000000)',
	'CREATE TABLE alike (LIKE idem_key_0 INCLUDING ALL); ALTER TABLE alike ADD CHECK (length(key) < 5), ADD COLUMN more text, ALTER request SET NOT NULL',
	'ALTER TABLE other.stock_log ADD CHECK (note <> \'\'), ALTER note SET NOT NULL, ENABLE ROW LEVEL SECURITY, ADD COLUMN more text',
	'CREATE TABLE heirs () INHERITS (other.stock_log)',
	'CREATE DOMAIN short AS text CHECK (length(VALUE) < 5)');
is(error_code($node, 'postgres', q(INSERT INTO outbox_partition (subscription, number, position) VALUES (1, 0, 2000000))), '23514',
	'and is enforced there');
sql('ALTER TABLE outbox_partition DROP CONSTRAINT low');

# What is added by a script of the extension itself.
sql(q(ALTER EXTENSION idempotency DROP TABLE idem_key_0; ALTER TABLE idem_key_0 ADD CONSTRAINT short CHECK (length(key) < 50);
	ALTER EXTENSION idempotency ADD TABLE idem_key_0; ALTER TABLE idem_key_0 DROP CONSTRAINT short));

# --- what has slipped in

sub says
{
	return sql(q(SELECT state || ': ' || detail FROM idempotency_status() WHERE "check" = 'alterations'));
}

is(says(), 'ok: nothing was added that is not enforced', 'nothing has slipped in');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
for my $refused (@refused)
{
	my ($statement, undef, $found, $undo) = @$refused;

	sql($statement);
	is(says(), length $found ? "warning: not enforced by calls, or refused by them: $found" : 'ok: nothing was added that is not enforced', "found: $statement")
	  if defined $undo;
	sql($undo) if defined $undo;
}
is(says(), 'warning: not enforced by calls, or refused by them: columns of outbox_history_0, columns of stock_in_doubt', 'found: columns');
is(sql(q(SELECT hint FROM idempotency_status() WHERE "check" = 'alterations')), 'undo it: the extension writes to these tables without the executor', 'with a hint');

done_testing();
