-- The signatures that callers rely on.  If this fails, their code breaks.
BEGIN;
SELECT plan(12);

SELECT enum_has_labels('idem_outcome',
	ARRAY['claimed', 'in_progress', 'completed', 'failed', 'mismatch']);
SELECT function_returns('idem_claim',
	ARRAY['text', 'text', 'interval', 'text', 'interval', 'boolean'], 'record');
SELECT function_returns('idem_complete',
	ARRAY['text', 'bigint', 'jsonb', 'text', 'interval'], 'void');
SELECT function_returns('idem_fail',
	ARRAY['text', 'bigint', 'jsonb', 'text', 'boolean'], 'void');
SELECT function_returns('idem_renew',
	ARRAY['text', 'bigint', 'interval', 'text'], 'timestamp with time zone');
SELECT function_returns('idem_forget', ARRAY['text', 'text'], 'boolean');
SELECT function_returns('outbox_enqueue',
	ARRAY['text', 'jsonb', 'text', 'text', 'jsonb', 'timestamp with time zone'], 'bigint');
SELECT volatility_is('idem_claim',
	ARRAY['text', 'text', 'interval', 'text', 'interval', 'boolean'], 'volatile');

-- A misspelt outcome is an error, not a branch never taken.
SELECT throws_ok($$ SELECT outcome = 'claimd' FROM idem_claim('k') $$, '22P02');

-- Keys are compared byte by byte, whatever the database's collation is.
SELECT col_is_pk('idem_key_0', ARRAY['key', 'scope']);
SELECT is((SELECT count(*)::integer FROM pg_attribute
	WHERE attrelid = 'idem_key_0'::regclass AND attname IN ('scope', 'key')
		AND attcollation = '"C"'::regcollation), 2, 'scope and key have collation C');
SELECT results_eq($$ SELECT seqcache, seqcycle FROM pg_sequence
	WHERE seqrelid IN ('outbox_position_seq'::regclass, 'idem_token_seq'::regclass) $$,
	$$ VALUES (1::bigint, false), (1::bigint, false) $$,
	'positions and tokens are handed out one by one');

SELECT * FROM finish();
ROLLBACK;
