/* claim: the public functions.  EXECUTE is the gate; the C code checks no other privilege. */

CREATE FUNCTION idem_claim(
	key     text,
	scope   text DEFAULT '',
	lease   interval DEFAULT NULL,
	request text DEFAULT NULL,
	ttl     interval DEFAULT NULL,
	wait    boolean DEFAULT true,
	OUT outcome     idem_outcome,
	OUT token       bigint,
	OUT attempt     integer,
	OUT response    jsonb,
	OUT retry_after interval)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_claim(text, text, interval, text, interval, boolean) IS
	'Claims a key for this transaction, or with a lease for work beyond it; says what became of it before otherwise.';

CREATE FUNCTION idem_complete(
	key      text,
	token    bigint,
	response jsonb DEFAULT NULL,
	scope    text DEFAULT '',
	ttl      interval DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_complete(text, bigint, jsonb, text, interval) IS
	'Completes a claimed key and saves the answer that later claims of it get.';

CREATE FUNCTION idem_fail(
	key   text,
	token bigint,
	error jsonb DEFAULT NULL,
	scope text DEFAULT '',
	retry boolean DEFAULT true)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_fail(text, bigint, jsonb, text, boolean) IS
	'Ends a claim in failure: free for the next claimer, or for good with retry => false.';

CREATE FUNCTION idem_renew(
	key   text,
	token bigint,
	lease interval DEFAULT NULL,
	scope text DEFAULT '')
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_renew(text, bigint, interval, text) IS
	'Extends the lease of a key in progress, counted from now; returns when it ends.';

CREATE FUNCTION idem_forget(key text, scope text DEFAULT '')
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idem_forget(text, text) IS
	'For operators: drops what is remembered of a key; says whether there was anything.';

CREATE FUNCTION idem_expire(max_keys integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	expired bigint;
BEGIN
	IF max_keys IS NULL THEN
		RAISE EXCEPTION 'max_keys must not be null' USING ERRCODE = '22004';
	ELSIF max_keys <= 0 THEN
		RAISE EXCEPTION 'max_keys must be positive' USING ERRCODE = '22023';
	END IF;
	WITH lapsed AS (
		SELECT scope, key FROM @extschema@.idem_key
		WHERE expires_at <= (SELECT clock_timestamp())  -- one value, for the index
		ORDER BY expires_at
		LIMIT max_keys
		FOR UPDATE SKIP LOCKED)
	DELETE FROM @extschema@.idem_key k USING lapsed l
	WHERE k.scope = l.scope AND k.key = l.key;
	GET DIAGNOSTICS expired = ROW_COUNT;
	RETURN expired;
END
$$;
COMMENT ON FUNCTION idem_expire(integer) IS
	'Internal: the sweeper drops keys past their ttl; returns how many.';
