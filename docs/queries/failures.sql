-- Why are events not delivered? The number of events by subscription and error.
SELECT subscription, state, last_status, last_error, count(*) AS events, min(created_at) AS oldest, min(next_attempt_at) AS next_attempt_at
FROM outbox_deliveries WHERE state <> 'delivered'
GROUP BY subscription, state, last_status, last_error ORDER BY events DESC, subscription;
