/*
 * cancel.h
 *		Events that were cancelled before their time.
 */
#ifndef OUTBOX_CANCEL_H
#define OUTBOX_CANCEL_H

typedef enum CancelState
{
	CANCEL_NONE,
	CANCEL_OPEN,				/* an open transaction may cancel the event */
	CANCEL_DONE
} CancelState;

extern CancelState cancel_state(int64 position);

#endif							/* OUTBOX_CANCEL_H */
