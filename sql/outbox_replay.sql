-- The log is read again from a position or time on, as far back as it goes;
-- replay never moves forward.
\set db idempotency_replay
\getenv dir PG_ABS_SRCDIR
\i :dir/sql/include/ring.sql
CREATE VIEW partition_positions AS
SELECT s.name, p.number, p.position
FROM outbox_partition p JOIN outbox_subscription s ON s.id = p.subscription;

SELECT outbox_subscribe('one', 'http://127.0.0.1:1/') > '' AS one,
	outbox_subscribe('two', 'http://127.0.0.1:1/', partitions => 2) > '' AS two;
SELECT count(outbox_enqueue('t', to_jsonb(n))) FROM generate_series(1, 3) n;
SELECT until('outbox_switch()');
SELECT count(outbox_enqueue('t', to_jsonb(n))) FROM generate_series(4, 6) n;
UPDATE outbox_partition
SET position = CASE WHEN number = 0 THEN 5 ELSE 2 END,
	stragglers = '{3}', straggler_froms = '{2}';

-- Events that a partition has not read yet are not skipped.
SELECT outbox_replay('two', from_position => 4);
SELECT * FROM partition_positions ORDER BY 1, 2;
SELECT outbox_replay('two', from_position => 1);
SELECT outbox_replay('one', since => created_at) FROM outbox_log WHERE position = 3;
SELECT * FROM partition_positions ORDER BY 1, 2;
SELECT outbox_replay('one', from_position => 100),
	outbox_replay('one', since => 'infinity'),
	outbox_replay('one', from_position => 3);
SELECT outbox_replay('one', since => '-infinity');
UPDATE outbox_partition SET position = 6;
SELECT outbox_replay('one', from_position => -5);
UPDATE outbox_partition SET position = 6, stragglers = '{}', straggler_froms = '{}';
SELECT until('outbox_retire()');
CALL old_snapshots_end('outbox_ring');
SELECT until('outbox_truncate()');
SELECT outbox_replay('one', from_position => 1);
SELECT * FROM partition_positions ORDER BY 1, 2;
-- Open transactions remain stragglers.
UPDATE outbox_partition SET position = 6, stragglers = '{3}', straggler_froms = '{6}';
SELECT outbox_replay('one', from_position => 4);
SELECT stragglers, straggler_froms FROM outbox_partition;

SELECT outbox_replay('one');
\set VERBOSITY sqlstate
SELECT outbox_replay('one', 1, 'now');
SELECT outbox_replay('nobody', 1);
SELECT outbox_replay(NULL, 1);
\i :dir/sql/include/ring_end.sql
