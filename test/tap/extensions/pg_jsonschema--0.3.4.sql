/*
 * Debian has no package of pg_jsonschema.  This extension has the functions of
 * that name and version that ours calls, with the same parameters and results.
 * Payloads are checked by the Python library jsonschema.  As with the original,
 * a schema that is not valid makes jsonb_matches_schema fail, and a reason
 * quotes the value that is wrong.
 */
CREATE FUNCTION jsonb_matches_schema(schema json, instance jsonb)
RETURNS boolean
LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE
AS $$
import json, jsonschema
parsed = json.loads(schema)
kind = jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator)
kind.check_schema(parsed)
return kind(parsed).is_valid(json.loads(instance))
$$;

CREATE FUNCTION jsonschema_is_valid(schema json)
RETURNS boolean
LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE
AS $$
import json, jsonschema
parsed = json.loads(schema)
try:
    jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator).check_schema(parsed)
except jsonschema.SchemaError:
    return False
return True
$$;

CREATE FUNCTION jsonschema_validation_errors(schema json, instance json)
RETURNS text[]
LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE
AS $$
import json, jsonschema
parsed = json.loads(schema)
kind = jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator)
return [error.message for error in kind(parsed).iter_errors(json.loads(instance))]
$$;
