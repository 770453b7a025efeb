-- What callers may rely on beside the signatures, which public_api.sql has.  If
-- this fails, a key is claimed twice, or claims get slower.
BEGIN;
SELECT plan(9);

-- A misspelt outcome is an error, not a branch never taken.
SELECT throws_ok($$ SELECT outcome = 'claimd' FROM idem_claim('k') $$, '22P02');

-- Keys are compared byte by byte, whatever the database's collation is.
SELECT col_is_pk(format('idem_key_%s', slot)::name, ARRAY['key', 'scope'])
FROM idem_ring ORDER BY slot;
SELECT is((SELECT count(*)::integer FROM pg_attribute
	WHERE attrelid IN ('idem_key_0'::regclass, 'idem_key_1'::regclass,
		'idem_key_2'::regclass)
		AND attname IN ('scope', 'key') AND attcollation = '"C"'::regcollation), 6,
	'scope and key have collation C');
-- Expiry costs nothing: no index but the one.
SELECT is((SELECT count(*)::integer FROM pg_index
	WHERE indrelid = format('idem_key_%s', slot)::regclass), 1,
	format('idem_key_%s has one index', slot)) FROM idem_ring ORDER BY slot;
SELECT results_eq($$ SELECT seqcache, seqcycle FROM pg_sequence
	WHERE seqrelid IN ('outbox_position_seq'::regclass, 'idem_token_seq'::regclass) $$,
	$$ VALUES (1::bigint, false), (1::bigint, false) $$,
	'positions and tokens are handed out one by one');

SELECT * FROM finish();
ROLLBACK;
