/* base: what all rooms use.  First part of the install script. */

CREATE FUNCTION idempotency_require_preload(what text)
RETURNS void
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION idempotency_require_preload(text) IS
	'Internal: raises an error unless the library is preloaded.';
