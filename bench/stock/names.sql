/*
 * The reservations that calls inside one query are made for: new ones of one
 * item each, and known ones.  psql variables: calls and suffix.
 */

CREATE TABLE new_name (sku text COLLATE "C", name text COLLATE "C");
CREATE TABLE known_name (LIKE new_name);
CREATE TABLE sold_name (LIKE new_name);

CREATE PROCEDURE make_new_names(names integer, items integer, suffix text)
LANGUAGE sql AS $$
	TRUNCATE new_name;
	INSERT INTO new_name
		SELECT 'item-' || 1 + n % items,
			1000000000000000000 + (random() * 8223372036854775807)::bigint
			|| suffix
		FROM generate_series(1, names) n;
$$;

CALL make_new_names(:calls, :items, :'suffix');
INSERT INTO known_name TABLE new_name;
INSERT INTO sold_name SELECT 'sold-1', reverse(name) FROM new_name;
SELECT stock_reserve(sku, 1, name), reserve_row(sku, 1, name) FROM known_name
\g /dev/null
VACUUM ANALYZE;
