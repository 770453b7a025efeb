/* claim: what is remembered of keys.  Written by src/claim/ alone. */

CREATE TYPE idem_outcome AS ENUM
	('claimed', 'in_progress', 'completed', 'failed', 'mismatch');
COMMENT ON TYPE idem_outcome IS
	'Answer of idem_claim: claimed (do the work), in_progress (somebody else is at it), completed and failed (done before, see response), mismatch (the key was used for another request).';

CREATE SEQUENCE idem_token_seq AS bigint;
COMMENT ON SEQUENCE idem_token_seq IS
	'Fencing tokens of idem_claim, each larger than the ones before.';

/*
 * state: p in progress, c completed, f failed for good, r failed and free for
 * the next claimer.  The columns of fixed width come first: they are what a
 * claim reads.
 */
CREATE TABLE idem_key (
	token       bigint NOT NULL,
	expires_at  timestamptz NOT NULL,
	attempt     integer NOT NULL,
	state       "char" NOT NULL CHECK (state IN ('p', 'c', 'f', 'r')),
	scope       text COLLATE "C" NOT NULL,
	key         text COLLATE "C" NOT NULL,
	lease_until timestamptz,
	request     bytea,
	response    jsonb,
	CONSTRAINT idem_key_pkey PRIMARY KEY (scope, key),
	CHECK ((state = 'p') = (lease_until IS NOT NULL))
);
CREATE INDEX idem_key_expires_at_idx ON idem_key (expires_at);
COMMENT ON TABLE idem_key IS
	'Keys that have been claimed, until they expire; request is a SHA-256.';

SELECT pg_catalog.pg_extension_config_dump('idem_key', '');
SELECT pg_catalog.pg_extension_config_dump('idem_token_seq', '');
