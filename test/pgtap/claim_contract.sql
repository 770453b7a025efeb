-- What callers rely on besides the signatures, which are in public_api.sql.  If
-- this fails, a key is claimed twice, or claims become slower.
BEGIN;
SELECT plan(9);

-- A misspelt outcome is an error, not a branch that is never taken.
SELECT throws_ok($$ SELECT outcome = 'claimd' FROM idem_claim('k') $$, '22P02');

-- Keys are compared by bytes, whatever the database's collation.
SELECT col_is_pk(format('idem_key_%s', slot)::name, ARRAY['key', 'scope'])
FROM idem_ring ORDER BY slot;
SELECT is((SELECT count(*)::integer FROM pg_attribute
	WHERE attrelid IN ('idem_key_0'::regclass, 'idem_key_1'::regclass,
		'idem_key_2'::regclass)
		AND attname IN ('scope', 'key') AND attcollation = '"C"'::regcollation), 6,
	'scope and key have collation C');
-- Expiry needs no index: there is only the primary key.
SELECT is((SELECT count(*)::integer FROM pg_index
	WHERE indrelid = format('idem_key_%s', slot)::regclass), 1,
	format('idem_key_%s has one index', slot)) FROM idem_ring ORDER BY slot;
SELECT results_eq($$ SELECT seqcache, seqcycle FROM pg_sequence
	WHERE seqrelid IN ('outbox_position_seq'::regclass, 'idem_token_seq'::regclass) $$,
	$$ VALUES (1::bigint, false), (1::bigint, false) $$,
	'positions and tokens are handed out one by one');

SELECT * FROM finish();
ROLLBACK;
