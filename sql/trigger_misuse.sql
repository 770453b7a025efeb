-- Each trigger function of the extension as a trigger of each kind on another
-- table, and called without a trigger: an error, and nothing else.  If this
-- fails, a CREATE TRIGGER crashes the server, or deletes rows.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;

CREATE TABLE foreign_table (id bigint, key text, topic text, payload jsonb,
	n integer);
CREATE VIEW foreign_view AS SELECT * FROM foreign_table;

-- The SQLSTATE that a statement ends with, and undoes it.
CREATE FUNCTION outcome_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RAISE SQLSTATE 'UUUUU';
EXCEPTION WHEN OTHERS THEN
	RETURN CASE SQLSTATE WHEN 'UUUUU' THEN 'done' ELSE SQLSTATE END;
END
$$;

CREATE FUNCTION outcome_of_trigger(
	function regprocedure, timing text, event text, level text)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	target text := CASE timing WHEN 'INSTEAD OF' THEN 'foreign_view' ELSE 'foreign_table' END;
	rows   text := CASE WHEN timing = 'AFTER' AND level = 'STATEMENT' AND event = 'DELETE'
		THEN 'REFERENCING OLD TABLE AS deleted' ELSE '' END;
	result text;
BEGIN
	INSERT INTO foreign_table VALUES (1, 'k', 't', '{}', 1);
	EXECUTE format('CREATE TRIGGER misuse %s %s ON %s %s FOR EACH %s EXECUTE FUNCTION %s',
		timing, event, target, rows, level, function);
	result := outcome_of(CASE event
		WHEN 'INSERT' THEN format('INSERT INTO %s VALUES (2)', target)
		WHEN 'UPDATE' THEN format('UPDATE %s SET n = 2', target)
		WHEN 'DELETE' THEN format('DELETE FROM %s', target)
		ELSE format('TRUNCATE %s', target) END);
	EXECUTE format('DROP TRIGGER misuse ON %s', target);
	DELETE FROM foreign_table;
	RETURN result;
END
$$;

CREATE VIEW trigger_function AS
	SELECT p.oid::regprocedure AS function
	FROM pg_proc p
	JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
		AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	WHERE e.extname = 'idempotency' AND p.prorettype = 'trigger'::regtype;

SELECT function, string_agg(outcome, ' ') AS outcomes, sum(kinds) AS kinds
FROM (
	SELECT function, outcome, count(*) AS kinds
	FROM trigger_function, (VALUES ('BEFORE'), ('AFTER'), ('INSTEAD OF')) t (timing),
		(VALUES ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE')) e (event),
		(VALUES ('ROW'), ('STATEMENT')) l (level),
		outcome_of_trigger(function, timing, event, level) outcome
	WHERE (timing = 'INSTEAD OF') <= (level = 'ROW')
		AND (event = 'TRUNCATE') <= (level = 'STATEMENT' AND timing <> 'INSTEAD OF')
	GROUP BY 1, 2) o
GROUP BY function ORDER BY function::text;

-- PL/pgSQL has an error of its own.
SELECT function, outcome_of(format('SELECT %s', function)) FROM trigger_function
ORDER BY function::text;

DROP VIEW trigger_function, foreign_view;
DROP TABLE foreign_table;
DROP FUNCTION outcome_of, outcome_of_trigger;
