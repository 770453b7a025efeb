-- What takes disk space, and what keeps it from being emptied?
SELECT name, state, pg_size_pretty(size) AS size, closed_at FROM idempotency_segments ORDER BY idempotency_segments.size DESC;
SELECT 'session ' || pid AS keeps, state, xact_start AS since, left(query, 60) AS query FROM pg_stat_activity
WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND xact_start < now() - interval '10 min'
UNION ALL
SELECT 'prepared ' || gid, NULL, prepared, NULL FROM pg_prepared_xacts WHERE prepared < now() - interval '10 min'
UNION ALL
SELECT 'slot ' || slot_name, CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL, NULL FROM pg_replication_slots WHERE age(xmin) > 1000000
ORDER BY since;
