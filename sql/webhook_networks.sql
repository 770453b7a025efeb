-- idempotency.webhook_allowed_networks is a list of addresses and networks, and
-- nothing else.  If this fails, a typing error forbids what was to be allowed,
-- and only the log of the server says so.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
RESET client_min_messages;

-- What is refused changes nothing.
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '10.0.0.0/8, shop.example.com';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '10.0.0.0/33';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '10.0.0.0/';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '10.0.0.0/-1';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '10.0.0/8';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '::1/129';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '10.0.0.0/8 127.0.0.1';
ALTER SYSTEM SET idempotency.webhook_allowed_networks = '*';
SET idempotency.webhook_allowed_networks = '127.0.0.1';
SELECT format('ALTER SYSTEM SET idempotency.webhook_allowed_networks = %L', repeat('::,', 65)) \gexec
SELECT count(*) FROM pg_file_settings
WHERE name = 'idempotency.webhook_allowed_networks' AND sourcefile LIKE '%auto.conf';
