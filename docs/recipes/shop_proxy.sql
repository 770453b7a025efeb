-- The database that applications connect to has no orders. It knows which shard
-- has which bucket. Variables of psql: shard_0, shard_1: connections.

CREATE EXTENSION plproxy;
CREATE SERVER shop FOREIGN DATA WRAPPER plproxy
	OPTIONS (connection_lifetime '60', p0 :'shard_0', p1 :'shard_1');
CREATE USER MAPPING FOR PUBLIC SERVER shop;
GRANT USAGE ON FOREIGN SERVER shop TO PUBLIC;

CREATE FUNCTION bucket(customer text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT ('x' || left(md5(customer), 8))::bit(32)::integer & 15
$$;

CREATE TABLE bucket_shard (bucket integer PRIMARY KEY, shard integer NOT NULL);
INSERT INTO bucket_shard SELECT n, n % 2 FROM generate_series(0, 15) n;
GRANT SELECT ON bucket_shard TO PUBLIC;

CREATE FUNCTION shard_of(customer text) RETURNS integer
LANGUAGE sql STABLE AS $$
	SELECT shard FROM bucket_shard WHERE bucket = bucket(customer)
$$;

CREATE FUNCTION place_order(request text, customer text, item text)
RETURNS jsonb
LANGUAGE plproxy AS $$
	CLUSTER 'shop';
	RUN ON shard_of(customer);
$$;
