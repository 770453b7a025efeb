-- What has become of a key? \set key request-4711
-- Without a row: it was never claimed, or it is forgotten.
SELECT scope, state, attempt, lease_until, expires_at FROM idem_keys WHERE key = :'key' ORDER BY scope;
