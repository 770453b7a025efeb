/*
 * Objects of a role that has nothing to do with the extension, and a function
 * that executes statements on them.
 */

CREATE SCHEMA tenant AUTHORIZATION tenant;
GRANT CREATE ON DATABASE :"DBNAME" TO tenant;	-- to rename a schema
GRANT pg_read_server_files TO tenant;
GRANT EXECUTE ON FUNCTION pg_read_file(text) TO tenant;
SET ROLE tenant;

CREATE TABLE tenant.t (a integer, b integer);
CREATE FUNCTION tenant.f() RETURNS trigger
LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER f BEFORE INSERT ON tenant.t
	FOR EACH ROW EXECUTE FUNCTION tenant.f();

/* Each pair of statements of a case undoes itself. */
CREATE FUNCTION tenant.repeat(kind text, calls integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	statements text[] := CASE kind
		WHEN 'ENABLE, DISABLE TRIGGER' THEN ARRAY['ALTER TABLE tenant.t DISABLE TRIGGER f', 'ALTER TABLE tenant.t ENABLE TRIGGER f']
		WHEN 'CREATE, DROP TRIGGER' THEN ARRAY['CREATE TRIGGER g AFTER INSERT ON tenant.t FOR EACH ROW EXECUTE FUNCTION tenant.f()', 'DROP TRIGGER g ON tenant.t']
		WHEN 'ALTER COLUMN' THEN ARRAY['ALTER TABLE tenant.t ALTER a SET STATISTICS 10', 'ALTER TABLE tenant.t ALTER a SET STATISTICS 20']
		WHEN 'RENAME of a schema' THEN ARRAY['ALTER SCHEMA tenant RENAME TO moved', 'ALTER SCHEMA moved RENAME TO tenant']
		WHEN 'CREATE, DROP TABLE' THEN ARRAY['CREATE TABLE tenant.u (a integer PRIMARY KEY)', 'DROP TABLE tenant.u']
		WHEN 'SET LOCAL' THEN ARRAY['SET LOCAL work_mem = ''8MB''', 'SET LOCAL work_mem = ''4MB'''] END;
BEGIN
	FOR i IN 1 .. calls / 2 LOOP
		EXECUTE statements[1];
		EXECUTE statements[2];
	END LOOP;
END
$$;
