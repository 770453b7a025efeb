-- The signatures that callers rely on.  If this fails, their code breaks.
BEGIN;
SELECT plan(21);

SELECT enum_has_labels('idem_outcome',
	ARRAY['claimed', 'in_progress', 'completed', 'failed', 'mismatch']);
SELECT function_returns('idem_claim',
	ARRAY['text', 'text', 'interval', 'text', 'interval', 'boolean'], 'idem_answer');
SELECT columns_are('idem_answer', ARRAY['outcome', 'token', 'attempt', 'response', 'retry_after']);
SELECT function_returns('idem_claim_many',
	ARRAY['text[]', 'text', 'interval', 'interval', 'boolean'], 'setof record');
SELECT columns_are('idem_key', ARRAY['token', 'expires_at', 'attempt', 'state', 'scope', 'key',
	'lease_until', 'request', 'response']);
SELECT columns_are('idem_stats', ARRAY['since', 'claimed', 'replayed', 'in_progress', 'mismatches',
	'takeovers', 'expired', 'keys_in_progress', 'keys_completed', 'keys_failed', 'keys_retryable',
	'oldest_lease']);
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
SELECT col_is_pk(format('idem_key_%s', slot)::name, ARRAY['key', 'scope']) FROM idem_ring ORDER BY slot;
SELECT is((SELECT count(*)::integer FROM pg_attribute
	WHERE attrelid IN ('idem_key_0'::regclass, 'idem_key_1'::regclass, 'idem_key_2'::regclass)
		AND attname IN ('scope', 'key') AND attcollation = '"C"'::regcollation), 6,
	'scope and key have collation C');
-- Expiry costs nothing: no index but the one.
SELECT is((SELECT count(*)::integer FROM pg_index WHERE indrelid = format('idem_key_%s', slot)::regclass), 1,
	format('idem_key_%s has one index', slot)) FROM idem_ring ORDER BY slot;
SELECT results_eq($$ SELECT seqcache, seqcycle FROM pg_sequence
	WHERE seqrelid IN ('outbox_position_seq'::regclass, 'idem_token_seq'::regclass) $$,
	$$ VALUES (1::bigint, false), (1::bigint, false) $$,
	'positions and tokens are handed out one by one');

SELECT * FROM finish();
ROLLBACK;
