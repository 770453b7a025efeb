-- Copies a shard that gives some of its buckets away. To be run by psql as a
-- superuser, in any database of the server. Variables of psql: old, new: the
-- names of the databases; buckets: those that move, an array.
--
-- Until the proxy sends orders to the new database, drop that and run this again
-- if it has stopped anywhere.

\set ON_ERROR_STOP on
\connect :old
SELECT count(idem_fence('bucket-' || b)) FROM unnest(:'buckets'::integer[]) b;

-- A database is copied while nobody is connected to it. Clients try again.
\connect postgres
ALTER DATABASE :"old" ALLOW_CONNECTIONS false;
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = :'old';
CREATE DATABASE :"new" TEMPLATE :"old";
ALTER DATABASE :"old" ALLOW_CONNECTIONS true;

-- The old database sends the events that both have, the new one those to come.
\connect :new
BEGIN;
SELECT count(idem_fence('bucket-' || b)) FROM generate_series(0, 15) b WHERE b <> ALL (:'buckets'::integer[]);
DELETE FROM orders WHERE bucket <> ALL (:'buckets'::integer[]);
SELECT count(outbox_unsubscribe(name)) FROM outbox_subscriptions;
SELECT outbox_adopt();
SELECT count(idem_unfence('bucket-' || b)) FROM unnest(:'buckets'::integer[]) b;
COMMIT;
