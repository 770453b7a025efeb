-- For the tests of the ring of keys: creates the extension in a database :db of
-- their own, where no worker runs.
\set ECHO none
SET client_min_messages = warning;
-- No worker ever runs in a template database.
CREATE DATABASE :db IS_TEMPLATE true;
\c :db
SET client_min_messages = warning;
CREATE EXTENSION idempotency;

-- Repeats a step until it succeeds, since autovacuum may have locked a table.
CREATE FUNCTION until(step text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	done boolean;
BEGIN
	FOR i IN 1..1000 LOOP
		EXECUTE 'SELECT ' || step INTO done;
		EXIT WHEN done;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN done;
END
$$;

-- Waits until no snapshot is older than the retirement of a table.  The caller
-- must not have such a snapshot either.
CREATE PROCEDURE old_snapshots_end(ring regclass) LANGUAGE plpgsql AS $$
DECLARE
	waits boolean;
BEGIN
	FOR i IN 1..1000 LOOP
		EXECUTE format('SELECT max(quiet_xid) > idempotency_horizon($1) FROM %s WHERE state = %L', ring, 'retired')
			INTO waits USING ring;
		COMMIT;
		EXIT WHEN waits IS NOT TRUE;
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
	ASSERT waits IS NOT TRUE, 'somebody has an old snapshot';
END
$$;

-- The place of every row of a key, in use or not.
CREATE VIEW places AS
SELECT k.key, r.state AS place, r.segment, k.state, k.attempt,
	k.expires_at > clock_timestamp() AS live
FROM (SELECT 0 AS slot, * FROM idem_key_0 UNION ALL SELECT 1, * FROM idem_key_1
	UNION ALL SELECT 2, * FROM idem_key_2) k JOIN idem_ring r USING (slot);

-- An answer that does not fit into a page.
CREATE FUNCTION big(seed text) RETURNS jsonb LANGUAGE sql AS
	$$ SELECT to_jsonb(string_agg(md5(seed || i), ''))
		FROM generate_series(1, 4000) i $$;

\set ring 'SELECT state, segment FROM idem_ring ORDER BY segment;'
\set SHOW_CONTEXT never
\set ECHO all
