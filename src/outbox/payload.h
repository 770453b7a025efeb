/*
 * payload.h
 *		The length of a payload as text.
 */
#ifndef OUTBOX_PAYLOAD_H
#define OUTBOX_PAYLOAD_H

#include "utils/jsonb.h"

/*
 * Does the text of a payload, in the encoding of the database, have at most
 * limit bytes?  Neither builds the text nor measures beyond the limit.
 */
extern bool payload_text_fits(Jsonb *payload, Size limit);

#endif							/* OUTBOX_PAYLOAD_H */
