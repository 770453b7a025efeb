-- Do the workers run? pid is null if one does not.
SELECT * FROM idempotency_workers ORDER BY kind, number;
