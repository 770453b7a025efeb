-- A claim is answered by what is committed now, whatever the snapshot.  The
-- isolation tests do the same with two sessions.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;

BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outcome, token AS token FROM idem_claim('i1', lease => '1 h') \gset
SELECT idem_complete('i1', :token, '1');
SELECT outcome, response FROM idem_claim('i1');
COMMIT;

BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outcome, response FROM idem_claim('i1');
SELECT outcome FROM idem_claim('i2');
SAVEPOINT s;
SELECT outcome FROM idem_claim('i3');
ROLLBACK TO s;
SELECT outcome FROM idem_claim('i3');
COMMIT;
SELECT outcome FROM idem_claim('i2');
SELECT outcome FROM idem_claim('i3');

-- With a cursor, each key is claimed for one of its rows.
BEGIN;
DECLARE c CURSOR FOR
	SELECT i, outcome FROM generate_series(1, 4) i, idem_claim('i4-' || i % 2);
FETCH 2 FROM c;
FETCH 2 FROM c;
COMMIT;
