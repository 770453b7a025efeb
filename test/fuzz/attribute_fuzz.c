/*
 * attribute_fuzz.c
 *		An attribute of a CloudEvent becomes a header of printable characters
 *		that decodes to the same value.  If this fails, a key or a type can
 *		forge a header, or arrives changed.
 *
 * Input: value of the attribute.
 */
#include "relay/message.c"

#include "fuzz.h"

#define NAME "subject"

static char
decode_percent(const char *digits)
{
	fuzz_check(strspn(digits, "0123456789ABCDEF") >= 2);
	return (char) strtol(pnstrdup(digits, 2), NULL, 16);
}

void
fuzz_one(void)
{
	char	   *value = fuzz_rest().text;
	char	   *header = message_attribute(NAME, value);
	char	   *encoded = header + strlen("ce-" NAME ": ");

	fuzz_check(strncmp(header, "ce-" NAME ": ", strlen("ce-" NAME ": ")) == 0);
	for (; *value != '\0'; value++)
	{
		fuzz_check(*encoded > ' ' && *encoded <= '~');
		if (*encoded == '%')
		{
			fuzz_check(decode_percent(encoded + 1) == *value);
			encoded += 3;
		}
		else
			fuzz_check(*encoded++ == *value);
	}
	fuzz_check(*encoded == '\0');
}
