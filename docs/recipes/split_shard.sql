-- Copies a shard that gives some of its buckets away. To be run by psql as a
-- superuser, in any database of the server. Variables of psql: old, new: the
-- names of the databases; buckets: those that move, an array.
--
-- Until the proxy sends orders to the new database, drop that and run this again
-- if it has stopped anywhere.

\set ON_ERROR_STOP on
\connect postgres
ALTER DATABASE :"old" ALLOW_CONNECTIONS true;
\connect :old
SELECT set_config('split.new', :'new', false);
DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_database WHERE datname = current_setting('split.new')) THEN
		RAISE EXCEPTION 'the new database exists';
	ELSIF EXISTS (SELECT FROM pg_prepared_xacts WHERE database = current_database()) THEN
		RAISE EXCEPTION 'the shard has prepared transactions, with which it cannot be copied';
	ELSIF EXISTS (SELECT FROM stock_levels) THEN
		RAISE EXCEPTION 'the shard has stock, which both would sell';
	END IF;
END
$$;
SELECT count(idem_fence('bucket-' || b)) FROM unnest(:'buckets'::integer[]) b;

-- A database is copied while nobody is connected to it. Clients try again. If
-- the copy fails, the shard goes on, and clients of these buckets still wait.
\connect postgres
ALTER DATABASE :"old" ALLOW_CONNECTIONS false;
\set ON_ERROR_STOP off
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = :'old';
CREATE DATABASE :"new" TEMPLATE :"old";
ALTER DATABASE :"old" ALLOW_CONNECTIONS true;
\set ON_ERROR_STOP on

-- The old database sends the events that both have, the new one those to come.
\connect :new
BEGIN;
SELECT count(idem_fence('bucket-' || b)) FROM generate_series(0, 15) b WHERE b <> ALL (:'buckets'::integer[]);
DELETE FROM orders WHERE bucket <> ALL (:'buckets'::integer[]);
SELECT count(outbox_unsubscribe(name)) FROM outbox_subscriptions;
SELECT outbox_adopt();
SELECT count(idem_unfence('bucket-' || b)) FROM unnest(:'buckets'::integer[]) b;
COMMIT;
