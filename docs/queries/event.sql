-- Where is an event? \set position 17
-- Without a row: it was delivered, or is not read yet (compare subscriptions.sql), or no subscription wants it.
SELECT subscription, state, attempts, next_attempt_at, last_at, last_status, last_error
FROM outbox_deliveries WHERE position = :position ORDER BY subscription;
