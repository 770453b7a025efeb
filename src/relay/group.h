/*
 * group.h
 *		A group: the events that travel in one request.
 */
#ifndef RELAY_GROUP_H
#define RELAY_GROUP_H

#include "nodes/pg_list.h"

#include "relay/batch.h"
#include "relay/http.h"
#include "relay/retry.h"

/* The groups of a feed. */
typedef struct Groups
{
	MemoryContext context;
	void	   *owner;
	List	   *in_flight;		/* of Group * */
	List	   *halves;			/* the same, that are sent next */
} Groups;

/* What an answer means for the caller. */
typedef struct GroupAnswer
{
	void	   *owner;			/* of the groups */
	RetryClass	class;
	int64		position;		/* of the first event */
	int			status;
	int			retry_after_s;
	bool		blames_event;	/* it failed, but the endpoint works */
	int64		version;		/* of the subscription that it was sent by */
	bool		shortened;		/* it was told to end, and not answered */
} GroupAnswer;

/* Has no groups; they will be in the current memory context. */
extern void groups_init(Groups *groups, void *owner);

/*
 * Sends what may be sent now of these batches (Batch *), at most room requests;
 * returns how many.  Each event takes a token; the last request may take more
 * than there are, if it was refused before.
 */
extern int	groups_send(Groups *groups, List *batches, int room, int *tokens,
						const char *identity);

/* Is there a request that can be sent apart from those of batches? */
extern bool groups_are_ready(const Groups *groups);

/* Handles an answer to a request; the tag tells to which. */
extern GroupAnswer groups_take_response(const HttpResponse *response);

/* Gives halves that were not sent yet back to their batches. */
extern void groups_give_back(Groups *groups);

/*
 * Requests in flight must end within this time.  Events whose requests are not
 * answered by then are sent again at once.
 */
extern void groups_shorten(Groups *groups, int left_ms);

#endif							/* RELAY_GROUP_H */
