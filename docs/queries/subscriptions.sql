-- Does every subscription get its events? Those that are most behind come first.
SELECT name, state, lag, lag_events, in_flight, waiting, parked, dead, rate, next_attempt_at, reason
FROM outbox_subscriptions ORDER BY state_code DESC, lag DESC, name;
