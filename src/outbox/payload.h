/*
 * payload.h
 *		How long the text of a payload is.
 */
#ifndef OUTBOX_PAYLOAD_H
#define OUTBOX_PAYLOAD_H

#include "utils/jsonb.h"

/*
 * Has the text of a payload, in the encoding of the database, at most so many
 * bytes?  The text is not made, and not measured beyond the limit.
 */
extern bool payload_text_fits(Jsonb *payload, Size limit);

#endif							/* OUTBOX_PAYLOAD_H */
