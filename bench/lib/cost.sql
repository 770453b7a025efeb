/*
 * How CPU and WAL of a call are measured: of many calls in one query, so that
 * neither the network nor the commit is in it.
 *
 * The clock is that of the kernel's scheduler, in ns, for this process alone.
 * It is brought up to date when the process sleeps, hence the sleeps.
 */

CREATE FUNCTION cpu_ns() RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.001);
	RETURN split_part(pg_read_file(format('/proc/%s/schedstat', pg_backend_pid())), ' ', 1);
END
$$;

/* us of CPU for each of the calls that a query makes. */
CREATE FUNCTION cpu_us_per_call(query text, calls integer) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
	started bigint := cpu_ns();
BEGIN
	EXECUTE query;
	RETURN (cpu_ns() - started) / 1000.0 / calls;
END
$$;

/* Bytes of WAL for each of the calls that a query makes. */
CREATE FUNCTION wal_bytes_per_call(query text, calls integer) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, WAL, FORMAT JSON) ' || query INTO plan;
	RETURN (plan -> 0 -> 'Plan' ->> 'WAL Bytes')::numeric / calls;
END
$$;
