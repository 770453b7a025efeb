/* How a backlog is made, and how its delivery is measured. */

/*
 * One event in a hundred has a topic of its own.  Keys come in random order, so
 * that some are found twice in one batch of the relay.
 */
CREATE PROCEDURE fill_log(events integer, payload jsonb)
LANGUAGE plpgsql AS $$
DECLARE
	step constant integer := 100000;
BEGIN
	FOR lowest IN 1 .. events BY step LOOP
		PERFORM outbox_enqueue(
			CASE WHEN n % 100 = 0 THEN 'slow' ELSE 'order' END, payload,
			key => 'customer-' || floor(random() * 1000), type => 'placed')
		FROM generate_series(lowest, least(lowest + step - 1, events)) n;
		COMMIT;
	END LOOP;
END
$$;

/*
 * Delivers what is in the log to a new subscription, and says how long that
 * took and what WAL it wrote.  An event that could not be delivered ends it
 * with an error, since the position moves on all the same.  If max_in_flight is
 * null, the subscription has the default settings.
 *
 * Each look is a transaction of its own: a snapshot held for long would keep
 * the old versions of the position's row.
 */
CREATE PROCEDURE drain(
	url text, topics text[], ordered boolean, max_in_flight integer,
	batch integer,
	INOUT seconds numeric DEFAULT NULL, INOUT wal_bytes numeric DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
	started_at   timestamptz := clock_timestamp();
	start_of_wal pg_lsn := pg_current_wal_insert_lsn();
	deadline     timestamptz;
	subscription record;
BEGIN
	IF max_in_flight IS NULL THEN
		PERFORM outbox_subscribe('drain', url, topics => topics, start => 'earliest');
	ELSE
		PERFORM outbox_subscribe('drain', url, topics => topics, ordered => ordered,
			max_in_flight => max_in_flight, start => 'earliest', batch => batch,
			format => CASE WHEN batch > 1 THEN 'cloudevents' ELSE 'standard' END);
	END IF;
	SELECT started_at + '30 s' + lag_events * interval '1 ms' INTO deadline
	FROM outbox_subscriptions WHERE name = 'drain';
	COMMIT;
	LOOP
		PERFORM pg_sleep(0.01);
		SELECT * INTO subscription FROM outbox_subscriptions WHERE name = 'drain';
		IF subscription.waiting + subscription.dead > 0 THEN
			RAISE EXCEPTION 'an event could not be delivered: %', subscription.last_error;
		ELSIF clock_timestamp() > deadline THEN
			RAISE EXCEPTION 'there are still % events to deliver', subscription.lag_events;
		END IF;
		EXIT WHEN subscription.lag_events = 0;
		COMMIT;
	END LOOP;
	seconds := extract(epoch FROM clock_timestamp() - started_at);
	wal_bytes := pg_current_wal_insert_lsn() - start_of_wal;
END
$$;

/* Memory of the relays alone, in kB: shared buffers do not count. */
CREATE FUNCTION relay_memory_kb() RETURNS bigint
LANGUAGE sql AS $$
	SELECT sum(substring(pg_read_file(format('/proc/%s/status', pid))
		FROM 'RssAnon:\s*(\d+)')::bigint)
	FROM pg_stat_activity
	WHERE datname = current_database() AND backend_type LIKE 'idempotency relay%';
$$;

/* CPU time of the relays, in ms. */
CREATE FUNCTION relay_cpu_ms() RETURNS numeric
LANGUAGE sql AS $$
	SELECT sum(split_part(pg_read_file(format('/proc/%s/schedstat', pid)), ' ', 1)::bigint) / 1e6
	FROM pg_stat_activity
	WHERE datname = current_database() AND backend_type LIKE 'idempotency relay%';
$$;

/* Rows that were written to the tables of the outbox so far. */
CREATE FUNCTION outbox_rows_written() RETURNS bigint
LANGUAGE sql AS $$
	SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_all_tables
	WHERE schemaname = 'idempotency_internal' AND relname LIKE 'outbox\_%';
$$;
