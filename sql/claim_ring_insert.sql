-- Keys that are inserted by SQL, as pg_restore does: a key goes into the
-- current segment, whatever table is named, and exists once.  If this fails, a
-- key has two owners in a restored database.
\getenv dir PG_ABS_SRCDIR
\set db regress_claim_ring_insert
\i :dir/sql/include/ring.sql

SELECT outcome FROM idem_claim('old');
SELECT outcome FROM idem_claim('old-gone', ttl => '1 us');
SELECT until('idem_switch()');
SELECT outcome FROM idem_claim('new');
SELECT outcome FROM idem_claim('new-gone', ttl => '1 us');
INSERT INTO idem_key_0 VALUES (1, now() + '1 h', 1, 'c', '', 'h0', NULL, NULL, '0');
INSERT INTO idem_key_1
VALUES (2, now() + '1 h', 1, 'c', '', 'h1', NULL, NULL, big('h'));
COPY idem_key_2 FROM STDIN;
3	2999-01-01	3	p		h2	2998-01-01	\N	\N
4	2999-01-01	4	f	scope	h2	\N	\\x00	{"n": 4}
\.
SELECT * FROM places ORDER BY key, state;
SELECT outcome, response = big('h') AS response FROM idem_claim('h1');
SELECT outcome, attempt FROM idem_claim('h2');
SELECT outcome, attempt, response FROM idem_claim('h2', 'scope');
SELECT idem_complete('h2', 3, '"h2"');
SELECT outcome, attempt, response FROM idem_claim('h2');

-- A key that exists already, in any segment.
INSERT INTO idem_key_0 VALUES (5, now() + '1 h', 1, 'c', '', 'h0');
\set VERBOSITY sqlstate
INSERT INTO idem_key_0 VALUES (5, now() + '1 h', 1, 'c', '', 'new');
INSERT INTO idem_key_1 VALUES (5, now() + '1 h', 1, 'c', '', 'old');
COPY idem_key_0 FROM STDIN;
5	2999-01-01	3	c		h5	\N	\N	\N
5	2999-01-01	4	c		h5	\N	\N	\N
\.

-- Expired keys are not in the way, and do not come back.
INSERT INTO idem_key_0 VALUES (7, now() + '1 h', 1, 'c', '', 'old-gone', NULL, NULL, '7');
INSERT INTO idem_key_0 VALUES (7, now() + '1 h', 1, 'c', '', 'new-gone', NULL, NULL, '7');
INSERT INTO idem_key_1
VALUES (8, now() - interval '1 h', 1, 'c', '', 'gone', NULL, NULL, '8');
INSERT INTO idem_key_1
VALUES (8, now() - interval '1 h', 1, 'c', '', 'old', NULL, NULL, '8');
SELECT * FROM places WHERE key LIKE '%gone' OR key = 'old' ORDER BY key, segment;
SELECT outcome, response FROM idem_claim('old-gone');
SELECT outcome, response FROM idem_claim('old');

-- Rows that the tables refuse.
INSERT INTO idem_key_0 VALUES (5, now() + '1 h', 1, 'x', '', 'h6');
INSERT INTO idem_key_0 VALUES (5, now() + '1 h', 1, 'p', '', 'h6');
INSERT INTO idem_key_0 VALUES (5, now() + '1 h', 1, 'c', '', 'h6', now());
INSERT INTO idem_key_1 VALUES (5, now() + '1 h', 1, 'c', '', '');
INSERT INTO idem_key_1 VALUES (5, now() + '1 h', 1, 'c', '', repeat('x', 256));
INSERT INTO idem_key_2 VALUES (5, now() + '1 h', 1, 'c', repeat('x', 256), 'h6');
INSERT INTO idem_key_2 VALUES (5, now() + '1 h', 1, 'c', '', NULL);
INSERT INTO idem_key_2 VALUES (NULL, now() + '1 h', 1, 'c', '', 'h6');
INSERT INTO idem_key_2 VALUES (5, NULL, 1, 'c', '', 'h6');
INSERT INTO idem_key VALUES (5, now() + '1 h', 1, 'c', '', 'h6');
SELECT count(*) FROM places WHERE key IN ('', 'h5', 'h6');

-- The same as a subscriber of logical replication.
SET session_replication_role = replica;
INSERT INTO idem_key_0 VALUES (6, now() + '1 h', 1, 'c', '', 'h7');
INSERT INTO idem_key_0 VALUES (6, now() + '1 h', 1, 'c', '', 'old');
RESET session_replication_role;
SELECT * FROM places WHERE key = 'h7';

\i :dir/sql/include/ring_end.sql
