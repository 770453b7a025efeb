-- Bad arguments raise a clear error with its SQLSTATE, and change nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
SELECT token FROM idem_claim('e1', lease => '1 h') \gset
SELECT count(*) AS keys FROM idem_key \gset

-- The messages.
\set SHOW_CONTEXT never
SELECT idem_claim(NULL);
SELECT idem_claim('');
SELECT idem_claim(repeat('ä', 128));
SELECT idem_claim('e2', lease => '0');
SELECT idem_complete('nobody', 1);
SELECT idem_complete('e1', :token + 1);
SELECT idem_renew('e1', :token + 1);
-- A claim without a lease was completed by its commit.
SELECT token AS done FROM idem_claim('e0') \gset
SELECT idem_complete('e0', :done);
SELECT idem_complete('e0', :done, '{"too": "late"}');
SELECT idem_fail('e0', :done);
SELECT idem_complete('e0', :done + 1000000);
-- A smaller token is that of another key; or the key was taken over, or forgotten.
SELECT idem_complete('e0', :done - 1);
SELECT token AS lapsed FROM idem_claim('e01', lease => '1 us') \gset
SELECT token AS lost FROM idem_claim('e01', lease => '1 h') \gset
SELECT idem_complete('e01', :lapsed);
SELECT idem_forget('e01'), (idem_claim('e01', lease => '1 h')).attempt;
SELECT idem_complete('e01', :lost);
-- With a lease it was completed by its owner, who may have saved an answer.
SELECT token AS answered FROM idem_claim('e02', lease => '1 h') \gset
SELECT idem_complete('e02', :answered, '{"first": 1}');
SELECT idem_complete('e02', :answered, '{"second": 2}');
SELECT idem_fail('e02', :answered);
SELECT idem_renew('e02', :answered);
SELECT token AS failed FROM idem_claim('e00', lease => '1 h') \gset
SELECT idem_fail('e00', :failed, '{"code": 7}', retry => false);
SELECT idem_complete('e00', :failed);
SELECT idem_forget(key) FROM unnest('{e0,e00,e01,e02}'::text[]) key;

\set VERBOSITY sqlstate
\set long 'repeat(''x'', 256)'

-- idem_claim
SELECT idem_claim(:long);
SELECT idem_claim('e2', NULL);
SELECT idem_claim('e2', :long);
SELECT idem_claim('e2', lease => '-1 s');
SELECT idem_claim('e2', lease => '1 month -31 days');
SELECT idem_claim('e2', lease => '300000 years');
SELECT idem_claim('e2', ttl => '0');
SELECT idem_claim('e2', ttl => '-1 s');
SELECT idem_claim('e2', ttl => '300000 years');
SELECT idem_claim('e2', lease => '200000 years', ttl => '200000 years');
SELECT idem_claim('e2', wait => NULL);

-- idem_complete
SELECT idem_complete(NULL, :token);
SELECT idem_complete('', :token);
SELECT idem_complete(:long, :token);
SELECT idem_complete('e1', NULL);
SELECT idem_complete('e1', 0);
SELECT idem_complete('e1', -1);
SELECT idem_complete('e1', 9223372036854775807);
SELECT idem_complete('e1', :token, scope => NULL);
SELECT idem_complete('e1', :token, scope => 'elsewhere');
SELECT idem_complete('e1', :token, ttl => '0');
SELECT idem_complete('e1', :token, ttl => '300000 years');

-- idem_fail
SELECT idem_fail(NULL, :token);
SELECT idem_fail('e1', NULL);
SELECT idem_fail('e1', 0);
SELECT idem_fail('e1', :token + 1);
SELECT idem_fail('e1', :token, scope => NULL);
SELECT idem_fail('e1', :token, retry => NULL);
SELECT idem_fail('nobody', 1);

-- idem_renew
SELECT idem_renew(NULL, :token);
SELECT idem_renew('e1', NULL);
SELECT idem_renew('e1', -1);
SELECT idem_renew('e1', :token + 1);
SELECT idem_renew('e1', :token, '0');
SELECT idem_renew('e1', :token, '-1 s');
SELECT idem_renew('e1', :token, '300000 years');
SELECT idem_renew('e1', :token, scope => NULL);
SELECT idem_renew('nobody', 1);

-- idem_forget
SELECT idem_forget(NULL);
SELECT idem_forget('');
SELECT idem_forget('e1', NULL);
SELECT idem_forget('nobody');

-- In a read-only transaction.
BEGIN READ ONLY;
SELECT idem_claim('e2');
ROLLBACK;
BEGIN READ ONLY;
SELECT idem_complete('e1', :token);
ROLLBACK;

-- Nothing has changed, and the owner can still finish.
SELECT count(*) - :keys AS new_keys FROM idem_key;
SELECT idem_complete('e1', :token);

-- The longest names, and unusual characters.
SELECT outcome FROM idem_claim(repeat('x', 255), repeat('y', 255));
SELECT outcome FROM idem_claim(repeat('x', 255), repeat('y', 255));
SELECT outcome FROM idem_claim(E'\n\t''"\\ %', request => '');
SELECT outcome FROM idem_claim(E'\n\t''"\\ %', request => 'x');
SELECT outcome FROM idem_claim('e3', request => repeat('long ', 1000000));
SELECT outcome FROM idem_claim('e3', request => repeat('long ', 1000000));
