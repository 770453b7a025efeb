-- Is all well? No row: yes. Otherwise: what was found, and what to do.
SELECT "check", state, detail, hint FROM idempotency_status()
WHERE state <> 'ok' ORDER BY state_code DESC, "check";
