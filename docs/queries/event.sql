-- Where is an event? \set position 17
-- Without a row: it was delivered, or is not read yet (compare subscriptions.sql), or no subscription wants it.
SELECT d.subscription, d.state, d.attempts, d.next_attempt_at, d.last_at, d.last_status, d.last_error
FROM outbox_subscriptions s
CROSS JOIN LATERAL (SELECT * FROM outbox_deliveries WHERE subscription = s.name AND position = :position OFFSET 0) d
ORDER BY d.subscription;
