/* The keys that calls inside one query are made with. */

CREATE TABLE new_key (key text);
CREATE TABLE some_known_key AS SELECT key FROM known_key LIMIT 1;

CREATE PROCEDURE make_new_keys(keys integer, suffix text)
LANGUAGE sql AS $$
	TRUNCATE new_key;
	INSERT INTO new_key
		SELECT 1000000000000000000 + (random() * 8223372036854775807)::bigint
			|| suffix
		FROM generate_series(1, keys);
$$;
