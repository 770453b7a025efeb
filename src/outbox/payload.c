/*
 * payload.c
 *		The length of a payload as text.
 *
 * Numbers can make the text thousands of times as long as the jsonb.  Building
 * such a text could take seconds and more memory than there is, so a payload is
 * measured before it is converted.  The rules are those of JsonbToCString() and
 * escape_json().
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "outbox/payload.h"

#define SEPARATOR_LENGTH 2		/* ", " and ": " */
#define QUOTES_LENGTH 2
#define SHORT_ESCAPE_LENGTH 2	/* \n */
#define LONG_ESCAPE_LENGTH 6	/* \u001f */

/*
 * The longest text of a number with its separator, and the smallest size of a
 * number in a jsonb.
 */
#define NUMBER_LENGTH_MAX \
	(strlen("-.") + 131072 + 16383 + SEPARATOR_LENGTH)
#define NUMBER_BYTES_MIN 10

static Size
payload_string_length(const char *string, int bytes)
{
	Size		length = QUOTES_LENGTH;

	for (int i = 0; i < bytes; i++)
	{
		unsigned char byte = (unsigned char) string[i];

		if (byte == '"' || byte == '\\' || byte == '\b' || byte == '\f' ||
			byte == '\n' || byte == '\r' || byte == '\t')
			length += SHORT_ESCAPE_LENGTH;
		else if (byte < ' ')
			length += LONG_ESCAPE_LENGTH;
		else
			length++;
	}
	return length;
}

static Size
payload_number_length(Numeric number)
{
	Datum		result = DirectFunctionCall1(numeric_out,
											 NumericGetDatum(number));
	char	   *digits = DatumGetCString(result);
	Size		length = strlen(digits);

	pfree(digits);
	return length;
}

static Size
payload_scalar_length(const JsonbValue *scalar)
{
	switch (scalar->type)
	{
		case jbvNull:
			return strlen("null");
		case jbvBool:
			return strlen(scalar->val.boolean ? "true" : "false");
		case jbvNumeric:
			return payload_number_length(scalar->val.numeric);
		case jbvString:
			return payload_string_length(scalar->val.string.val,
										 scalar->val.string.len);
		default:
			elog(ERROR, "unexpected type of a scalar in jsonb: %d",
				 (int) scalar->type);
	}
}

/*
 * An array or object has two brackets, and a separator before each element or
 * key except the first; a key is followed by another separator.  A scalar alone
 * is represented as an array without brackets.
 */
static Size
payload_token_length(JsonbIteratorToken token, const JsonbValue *value)
{
	switch (token)
	{
		case WJB_BEGIN_ARRAY:
			if (value->val.array.rawScalar)
				return 0;
			return strlen("[]") +
				Max(value->val.array.nElems - 1, 0) * SEPARATOR_LENGTH;
		case WJB_BEGIN_OBJECT:
			return strlen("{}") +
				Max(value->val.object.nPairs - 1, 0) * SEPARATOR_LENGTH;
		case WJB_KEY:
			return payload_scalar_length(value) + SEPARATOR_LENGTH;
		case WJB_VALUE:
		case WJB_ELEM:
			return payload_scalar_length(value);
		default:
			return 0;
	}
}

bool
payload_text_fits(Jsonb *payload, Size limit)
{
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	value;
	Size		length = 0;

	/* A small one fits, even if it consists of numbers. */
	if (VARSIZE(payload) / NUMBER_BYTES_MIN < limit / NUMBER_LENGTH_MAX)
		return true;
	iterator = JsonbIteratorInit(&payload->root);
	while (length <= limit &&
		   (token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		length += payload_token_length(token, &value);
	}
	return length <= limit;
}
