/*
 * head.h
 *		The head of a relay: reads the log for all feeds that follow it.
 */
#ifndef RELAY_HEAD_H
#define RELAY_HEAD_H

#include "utils/hsearch.h"

#include "outbox/subscription.h"
#include "relay/trouble.h"

struct Feed;

typedef struct Head
{
	int			relay;			/* its number, which rows name */
	MemoryContext context;		/* lives as long as the process */
	bool		known;			/* the cursors are set */
	OutboxCursor cursor;		/* how far it has read */
	OutboxCursor recorded;		/* how far its row says */
	bool		row_exists;
	bool		alone;			/* no row names it that this relay does not
								 * serve */
	bool		at_end;			/* it has read all that this pass can read */
	int			followers;		/* feeds that are attached */
	TimestampTz record_at;		/* its row is not written before */
	Trouble		record_trouble; /* why it cannot be written */
	Trouble		trouble;		/* why the log cannot be read */
	bool		reading;		/* head_read has begun, and not ended */
	bool		handing_out;	/* some feeds have got their pages, perhaps */
	struct Feed *filtering;		/* whose filter is being asked, or NULL */
	uint64		reads;			/* how often it has begun to read */
	int64		filters_us;		/* time that filters took, the last time */
	int64		making;			/* position of the event that is being made */
	int64		bad;			/* the last one that could not be made */
	HTAB	   *topics;			/* which endpoints want a topic */
	List	   *pages;			/* of HeadPage *, while it reads */
	int			page_events;	/* deliveries in all of them */
	Size		page_bytes;		/* memory of the events in them, and payloads
								 * that filters have read */
} Head;

/* Initializes the head of a relay that has just started. */
extern void head_init(Head *head, int relay);

/* Reads in a transaction from where it goes on. */
extern void head_load(Head *head);

/* The topics of subscriptions have changed, or an endpoint is freed. */
extern void head_forget_topics(Head *head);

/*
 * Reads in a transaction the next events, and gives them to the feeds of these
 * endpoints (Endpoint *) that follow it.  Returns whether there is more to
 * read.
 */
extern bool head_read(Head *head, const OutboxHorizon *horizon,
					  List *endpoints);

/*
 * The same for lagging feeds (Feed *) that have all read equally far, of these
 * endpoints.  Those that cannot take what they want are left as they are.
 */
extern bool head_read_together(Head *head, const OutboxHorizon *horizon,
							   List *endpoints, List *feeds);

/*
 * Does not read in this pass.  Nothing must be read while a subscription has
 * changed and is not loaded yet: that would go by the settings before.
 */
extern void head_wait(Head *head);

/*
 * head_read has raised an error.  If one event was the cause, the feeds that
 * want it read it themselves; if it was a filter, its feed does.  Otherwise the
 * head pauses.
 */
extern void head_failed(Head *head, const char *error);

/* Has its row to be written, now or at record_at? */
extern bool head_wants_record(const Head *head);

/*
 * Writes its row in a transaction.  head_recorded must be called after the
 * commit; head_not_recorded, if that or a step before it has raised an error.
 */
extern void head_record(Head *head);
extern void head_recorded(Head *head);
extern void head_not_recorded(Head *head, const ErrorData *error);

#endif							/* RELAY_HEAD_H */
