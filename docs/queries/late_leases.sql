-- Which work was begun and never finished? The lease is over, and nobody has claimed the key again. Reads all keys.
SELECT scope, key, attempt, lease_until FROM idem_keys
WHERE state = 'in_progress' AND lease_until < now() ORDER BY lease_until LIMIT 100;
