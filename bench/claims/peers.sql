/*
 * What idem_claim is measured against: tables and functions that an
 * application would write for itself.  Each recipe has a table of its own, so
 * that all of them hold as many keys as ours.
 *
 * None of the tables has an index on expires_at, which a clean-up would need:
 * that is in favour of the recipes.
 */

CREATE EXTENSION idempotency;

CREATE TABLE peer (
	scope      text NOT NULL,
	key        text NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	expires_at timestamptz NOT NULL,
	response   jsonb,
	PRIMARY KEY (scope, key)
);
CREATE TABLE peer_do_nothing (LIKE peer INCLUDING ALL);
CREATE TABLE peer_do_update (LIKE peer INCLUDING ALL);
CREATE TABLE peer_insert_first (LIKE peer INCLUDING ALL);
CREATE TABLE peer_select_first (LIKE peer INCLUDING ALL);
CREATE TABLE peer_batch (LIKE peer INCLUDING ALL);

/*
 * A key that is in progress under a lease.  The pages have room for the new row
 * version of the completion.
 */
CREATE TABLE peer_leased (
	scope       text NOT NULL,
	key         text NOT NULL,
	state       text NOT NULL DEFAULT 'in_progress',
	attempt     integer NOT NULL DEFAULT 1,
	lease_until timestamptz,
	request     text,
	response    jsonb,
	expires_at  timestamptz NOT NULL,
	PRIMARY KEY (scope, key)
) WITH (fillfactor = 60);

/*
 * What a request makes, in service.pl: a row for each contender's key.  If the
 * key were unique here, nobody would need another store for it.
 */
CREATE TABLE peer_order (
	id        bigserial PRIMARY KEY,
	contender text NOT NULL,
	key       text NOT NULL,
	total     numeric NOT NULL
);

/* The upsert decides; who was too late asks for the answer. */
CREATE FUNCTION insert_first(the_key text, OUT outcome text, OUT response jsonb)
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO peer_insert_first AS p (scope, key, expires_at)
	VALUES ('', the_key, now() + interval '1 day')
	ON CONFLICT (scope, key) DO UPDATE
	SET created_at = excluded.created_at, expires_at = excluded.expires_at,
		response = NULL
	WHERE p.expires_at <= now();
	IF FOUND THEN
		outcome := 'claimed';
		RETURN;
	END IF;
	SELECT 'completed', p.response INTO outcome, response
	FROM peer_insert_first p
	WHERE p.scope = '' AND p.key = the_key;
END
$$;

/* A look first, so that a replay locks nothing; then the same upsert. */
CREATE FUNCTION select_first(the_key text, OUT outcome text, OUT response jsonb)
LANGUAGE plpgsql AS $$
BEGIN
	SELECT 'completed', p.response INTO outcome, response
	FROM peer_select_first p
	WHERE p.scope = '' AND p.key = the_key AND p.expires_at > now();
	IF FOUND THEN
		RETURN;
	END IF;
	INSERT INTO peer_select_first AS p (scope, key, expires_at)
	VALUES ('', the_key, now() + interval '1 day')
	ON CONFLICT (scope, key) DO UPDATE
	SET created_at = excluded.created_at, expires_at = excluded.expires_at,
		response = NULL
	WHERE p.expires_at <= now();
	IF FOUND THEN
		outcome := 'claimed';
		RETURN;
	END IF;
	SELECT 'completed', p.response INTO outcome, response
	FROM peer_select_first p
	WHERE p.scope = '' AND p.key = the_key;
END
$$;

/*
 * The clean-up of a table written by hand: an index, and batches.
 */
CREATE TABLE peer_expiring (LIKE peer INCLUDING ALL);
CREATE INDEX ON peer_expiring (expires_at);

CREATE PROCEDURE delete_expired(batch integer)
LANGUAGE plpgsql AS $$
DECLARE
	deleted bigint;
BEGIN
	LOOP
		DELETE FROM peer_expiring
		WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM peer_expiring WHERE expires_at < now()
			LIMIT batch));
		GET DIAGNOSTICS deleted = ROW_COUNT;
		COMMIT;
		EXIT WHEN deleted < batch;
	END LOOP;
END
$$;
