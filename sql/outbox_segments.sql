-- The log is a ring of segments: a segment is closed, and retired and
-- truncated when no subscription has to read it any more.  A subscription that
-- falls too far behind loses what it has not read, and others lose nothing.
\set db idempotency_segments
\getenv dir PG_ABS_SRCDIR
\i :dir/sql/include/ring.sql
CREATE VIEW segments AS
SELECT r.segment, r.state, r.last_position,
	array_agg(e.position ORDER BY e.position) AS events
FROM outbox_ring r LEFT JOIN (SELECT 0 AS slot, position FROM outbox_log_0
	UNION ALL SELECT 1, position FROM outbox_log_1
	UNION ALL SELECT 2, position FROM outbox_log_2) e USING (slot)
	GROUP BY r.slot;
CREATE VIEW partition_positions AS
SELECT s.name, p.position, p.straggler_froms, p.lost
FROM outbox_partition p JOIN outbox_subscription s ON s.id = p.subscription;
CREATE FUNCTION move(
	name text, "position" bigint, straggler_from bigint DEFAULT NULL)
RETURNS void
LANGUAGE sql AS $$
	UPDATE outbox_partition p SET position = move.position,
		stragglers = CASE WHEN straggler_from IS NULL
			THEN '{}' ELSE '{3}'::xid8[] END,
		straggler_froms = array_remove(ARRAY[straggler_from], NULL)
	FROM outbox_subscription s
	WHERE s.id = p.subscription AND s.name = move.name
$$;

SELECT outbox_retire(), outbox_truncate();
SELECT outbox_subscribe('slow', 'http://127.0.0.1:1/') > '' AS slow,
	outbox_subscribe('quick', 'http://127.0.0.1:1/') > '' AS quick;
SELECT count(outbox_enqueue('t', to_jsonb(n))) FROM generate_series(1, 2) n;
SELECT until('outbox_switch()');
SELECT count(outbox_enqueue('t', to_jsonb(n))) FROM generate_series(3, 4) n;
SELECT until('outbox_switch()');
SELECT count(outbox_enqueue('t', to_jsonb(n))) FROM generate_series(5, 6) n;
SELECT * FROM segments ORDER BY segment;
SELECT position, payload FROM outbox_log ORDER BY position;

-- No segment is empty.
SELECT outbox_switch();

-- A segment is not truncated while a partition has to read it, even one
-- straggler's row.
SELECT move('slow', 1), move('quick', 6);
SELECT outbox_retire();
SELECT move('slow', 3, straggler_from => 2);
SELECT outbox_retire();
SELECT move('slow', 3, straggler_from => 3);
SELECT outbox_truncate();
SELECT until('outbox_retire()');
SELECT outbox_retire();
SELECT * FROM segments ORDER BY segment;
-- A retired segment does not count towards the limit of size, and is not
-- replayed.
SELECT outbox_log_size() <
	sum(pg_total_relation_size(('outbox_log_' || slot)::regclass)) AS less
FROM outbox_ring;
SELECT outbox_retired_to(), outbox_replay('quick', from_position => 1);
SELECT move('quick', 6);
CALL old_snapshots_end('outbox_ring');
SELECT until('outbox_truncate()');
SELECT outbox_truncate();
SELECT outbox_retired_to();
SELECT until('outbox_switch()');
SELECT outbox_enqueue('t', '7');
SELECT * FROM segments ORDER BY segment;

-- Subscriptions that are behind pass over the oldest segment.
SELECT outbox_warn_behind();
SELECT outbox_warn_behind();
SELECT outbox_pass_over();
SELECT outbox_pass_over();
SELECT * FROM partition_positions ORDER BY name;
SELECT until('outbox_retire()');
CALL old_snapshots_end('outbox_ring');
SELECT until('outbox_truncate()');
SELECT * FROM segments ORDER BY segment;
SELECT move('slow', 2);
SELECT outbox_pass_over();
SELECT * FROM partition_positions ORDER BY name;

-- Without a subscription nothing is held back.
SELECT outbox_unsubscribe('slow'), outbox_unsubscribe('quick');
SELECT until('outbox_retire()');
CALL old_snapshots_end('outbox_ring');
SELECT until('outbox_truncate()');
SELECT * FROM segments ORDER BY segment;

-- A restore may load rows into a closed segment: it is not retired before they
-- are read.
SELECT outbox_subscribe('copy', NULL);
SELECT outbox_enqueue('t', '8');
SELECT move('copy', 8);
SELECT until('outbox_switch()');
SELECT slot AS old FROM outbox_ring WHERE state = 'old' \gset
SELECT slot AS empty FROM outbox_ring WHERE state = 'empty' ORDER BY slot LIMIT 1 \gset
BEGIN;
INSERT INTO outbox_log_:old (position, xid, created_at, topic, payload) VALUES (1000, '3', now(), 't', '1000');
SELECT outbox_retire();
ROLLBACK;
SELECT until('outbox_retire()');

-- Or into one that is empty: the ring is then what the positions say.
SELECT outbox_enqueue('t', '9');
INSERT INTO outbox_log_:empty (position, xid, created_at, topic, payload) VALUES (5, '3', now(), 't', '5');
SELECT until('outbox_arrange_restored()'), outbox_arrange_restored();
SELECT * FROM segments ORDER BY segment;

-- A batch is out when its events are given up: its reader is told so, and does
-- not move the partition back.
SELECT token FROM outbox_fetch('copy') \gset
SELECT until('outbox_retire()');
CALL old_snapshots_end('outbox_ring');
SELECT until('outbox_truncate()'), until('outbox_truncate()');
SELECT until('outbox_switch()');
SELECT outbox_pass_over();
SELECT outbox_ack('copy', :token);
SELECT * FROM partition_positions ORDER BY name;
\i :dir/sql/include/ring_end.sql
