-- While a secret is rotated the old one is kept for the overlap, and no longer.
\set db idempotency_rotate
\getenv dir PG_ABS_SRCDIR
\i :dir/sql/include/ring.sql
CREATE VIEW secrets AS SELECT name, secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw' AS given,
	old_secret, old_until > clock_timestamp() AS in_overlap
FROM outbox_subscription;

SELECT outbox_subscribe('s', 'http://127.0.0.1:1/', secret => 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD');
SELECT outbox_rotate_secret('s', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
SELECT * FROM secrets;
SELECT old_until - clock_timestamp() BETWEEN '23:59' AND '24:00' AS a_day
FROM outbox_subscription;
-- Of three secrets the oldest is dropped.
SELECT outbox_rotate_secret('s', '1 h') ~ '^whsec_[A-Za-z0-9+/]{43}=$' AS generated;
SELECT * FROM secrets;
SELECT outbox_rotate_secret('s', '0', 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
SELECT outbox_expire();
SELECT * FROM secrets;

SELECT outbox_rotate_secret('s', secret => 'open sesame');
\set VERBOSITY sqlstate
SELECT outbox_rotate_secret('s', overlap => NULL);
SELECT outbox_rotate_secret('s', overlap => '-1 s');
SELECT outbox_rotate_secret('s', overlap => '10 years');
SELECT outbox_rotate_secret('nobody');
SELECT outbox_rotate_secret(NULL);
SELECT * FROM secrets;

-- If one row cannot be written, the others still lose their old secret.
SELECT outbox_subscribe('t', 'http://127.0.0.1:1/',
	secret => 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD') IS NOT NULL AS subscribed;
SELECT count(outbox_rotate_secret(name, '0')) FROM unnest('{s,t}'::text[]) AS n(name);
ALTER TABLE outbox_subscription ADD CONSTRAINT unwritable
	CHECK (name <> 's' OR old_secret IS NOT NULL) NOT VALID;
SELECT outbox_expire();
SELECT name, old_secret IS NULL AS forgotten FROM outbox_subscription
ORDER BY name;
ALTER TABLE outbox_subscription DROP CONSTRAINT unwritable;
SELECT outbox_expire();
SELECT name, old_secret IS NULL AS forgotten FROM outbox_subscription
ORDER BY name;
-- A step forgets a bounded number of them.
SELECT count(outbox_rotate_secret(name, '0')) FROM unnest('{s,t}'::text[]) AS n(name);
SELECT outbox_expire(1);
SELECT count(*) FILTER (WHERE old_secret IS NULL) AS forgotten FROM outbox_subscription;
SELECT outbox_expire(1);
SELECT count(*) FILTER (WHERE old_secret IS NULL) AS forgotten FROM outbox_subscription;
\i :dir/sql/include/ring_end.sql
