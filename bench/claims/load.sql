/*
 * The known keys: claimed, completed and answered, in every recipe.  They are
 * spread over the whole range of new ones, so that both are found all over an
 * index.  psql variables: keys, step and suffix, as bench has them.
 */

CREATE TABLE known_key AS
	SELECT (1000000000000000000 + n * :step)::text || :'suffix' AS key
	FROM generate_series(1, :keys) n
	ORDER BY random();

SELECT idem_complete(key, (idem_claim(key)).token, '{"order": 42, "total": "17.50"}')
FROM known_key
\g /dev/null

INSERT INTO peer_do_nothing (scope, key, expires_at, response)
	SELECT '', key, now() + interval '1 day', '{"order": 42, "total": "17.50"}'
	FROM known_key;
INSERT INTO peer_do_update TABLE peer_do_nothing;
INSERT INTO peer_insert_first TABLE peer_do_nothing;
INSERT INTO peer_select_first TABLE peer_do_nothing;
INSERT INTO peer_batch TABLE peer_do_nothing;
INSERT INTO peer_leased (scope, key, state, request, response, expires_at)
	SELECT scope, key, 'completed', md5(key), response, expires_at
	FROM peer_do_nothing;

VACUUM ANALYZE;
