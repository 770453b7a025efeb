/*
 * group.c
 *		A group: the events that travel in one request, and what its answer
 *		means for each of them.
 *
 * A group takes what is ready, up to the limits of the subscription; it never
 * waits for more.  Its events may be of several batches (batch.c).  The events
 * behind one of their key travel in the same group, in order, and in no other
 * one: so a key is never in two requests at the same time.  Headers are those
 * of a request, so all events of a group have the same.
 *
 * If the endpoint refuses a group with a status that may concern one event, or
 * breaks the connection before the whole request was sent, the group is halved:
 * its first half is sent, and then the second, and so on until the event that
 * is refused is alone.  All of that is one attempt at each event.  After any
 * other failure, the attempt has failed for all events, and they are retried in
 * smaller groups.  In both cases, events that come after a failed one of their
 * key were not tried: they are parked, or sent again if that one is dead.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "relay/group.h"
#include "relay/message.h"
#include "relay/traffic.h"

/* The most bytes of a body, unless it has one event only. */
#define GROUP_BYTES_MAX (1024 * 1024)
/* How many times fewer events a group has after each failed attempt. */
#define GROUP_RETRY_DIVISOR 10

typedef struct Group
{
	Groups	   *groups;
	List	   *items;			/* of BatchEvent *, in the order of the body */
	struct Group *second;		/* sent when this one is decided, or NULL */
} Group;

/* A group that is being filled. */
typedef struct GroupFilling
{
	List	   *items;
	int			most;			/* items at all */
	int			room;			/* for so many more items; 0: it is full */
	Size		bytes;
	const char *identity;
} GroupFilling;

void
groups_init(Groups *groups, void *owner)
{
	groups->context = CurrentMemoryContext;
	groups->owner = owner;
	groups->in_flight = groups->halves = NIL;
}

static Group *
group_create(Groups *groups, List *items)
{
	Group	   *group = palloc0(sizeof(Group));

	Assert(items != NIL);
	group->groups = groups;
	group->items = items;
	return group;
}

static void
group_free(Group *group)
{
	list_free(group->items);
	pfree(group);
}

/*
 * Returns how many events a group with this item can have.  An attempt that has
 * failed for a whole group may have failed because of one of them, so the next
 * one is made with fewer, and the last one of the schedule with the item alone.
 */
static int
group_size_max(const BatchEvent *item)
{
	const OutboxSubscription *subscription = batch_subscription(item->batch);
	int			attempts = item->result.attempts;
	int			size = subscription->batch;

	if (attempts > 0 && attempts >= subscription->schedule_count - 1)
		return 1;
	for (; attempts > 0 && size > 1; attempts--)
		size /= GROUP_RETRY_DIVISOR;
	return Max(size, 1);
}

/*
 * Can an item travel with those that a group has already?
 */
static bool
group_suits(const GroupFilling *filling, const BatchEvent *item)
{
	const BatchEvent *first;

	if (filling->items == NIL)
		return true;
	if (list_length(filling->items) >= group_size_max(item))
		return false;
	first = linitial(filling->items);
	return batch_subscription(item->batch)->version ==
		batch_subscription(first->batch)->version &&
		message_same_headers(item->event, first->event);
}

/*
 * Adds an item if there is room for it.
 */
static bool
group_add(GroupFilling *filling, BatchEvent *item)
{
	int			size_max = group_size_max(item);

	if (filling->items == NIL)
		filling->room = filling->most;
	if (batch_subscription(item->batch)->batch > 1)
		filling->bytes += message_batched_size(item->event, filling->identity);
	if (filling->items != NIL && filling->bytes > GROUP_BYTES_MAX)
	{
		filling->room = 0;
		return false;
	}
	Assert(!item->sent && !item->decided);
	item->sent = true;
	filling->items = lappend(filling->items, item);
	filling->room = Min(filling->room - 1,
						size_max - list_length(filling->items));
	return true;
}

/*
 * Adds a ready item, and those behind it of its key.
 */
static bool
group_add_key(GroupFilling *filling, BatchEvent *item)
{
	if (!group_suits(filling, item) || !group_add(filling, item))
		return false;
	while ((item = item->next_of_key) != NULL && filling->room > 0)
	{
		if (batch_has_expired(item) || !group_suits(filling, item) ||
			!group_add(filling, item))
			break;
	}
	return true;
}

static void
group_add_ready(GroupFilling *filling, Batch *batch)
{
	BatchEvent *item = batch_first_ready(batch);
	BatchEvent *before = NULL;

	while (item != NULL && filling->room > 0)
	{
		BatchEvent *next = item->next_ready;

		if (batch_has_expired(item))
		{
			batch_take_ready(item, before);
			batch_expire(item);
		}
		else if (group_add_key(filling, item))
			batch_take_ready(item, before);
		else
			before = item;
		item = next;
	}
}

/*
 * Makes a group of what is ready in these batches, of so many items at most.
 * Returns NULL if nothing is.
 */
static Group *
group_take(Groups *groups, List *batches, int most, const char *identity)
{
	GroupFilling filling = {.room = 1, .most = most, .identity = identity};
	ListCell   *cell;

	foreach(cell, batches)
	{
		if (filling.room <= 0)
			break;
		group_add_ready(&filling, lfirst(cell));
	}
	return filling.items ? group_create(groups, filling.items) : NULL;
}

static void
group_send(Group *group, const char *identity)
{
	const BatchEvent *first = linitial(group->items);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency message",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	HttpRequest request = {.tag = group};
	List	   *events = NIL;
	ListCell   *cell;

	foreach(cell, group->items)
	{
		const BatchEvent *item = lfirst(cell);

		Assert(item->sent && !item->decided);
		events = lappend(events, (void *) item->event);
	}
	message_build(batch_subscription(first->batch), events, identity, &request);
	http_submit(&request);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * Removes items that are decided, whose batches can be freed soon, or that were
 * taken back, and groups without any.  Returns the first group that is left, or
 * NULL.
 */
static Group *
group_forget_gone(Group *group)
{
	ListCell   *cell;

	for (Group *each = group; each != NULL; each = each->second)
	{
		foreach(cell, each->items)
		{
			const BatchEvent *item = lfirst(cell);

			if (item->decided || !item->sent)
				each->items = foreach_delete_current(each->items, cell);
		}
	}
	while (group != NULL && group->items == NIL)
	{
		Group	   *second = group->second;

		group_free(group);
		group = second;
	}
	return group;
}

/*
 * Time has passed since the items of a half were chosen: events that have
 * expired are not sent.  One that is behind another event of its key is not
 * dead before that one is decided, so it leaves the group with those behind it.
 */
static Group *
group_expire(Group *group)
{
	ListCell   *cell;

	foreach(cell, group->items)
	{
		BatchEvent *item = lfirst(cell);

		if (!item->sent || !batch_has_expired(item))
			continue;
		if (item->last_of_key == NULL)
			batch_expire(item);
		else
			for (; item != NULL; item = item->next_of_key)
				batch_take_back(item);
	}
	return group_forget_gone(group);
}

/*
 * Returns the next half that is to be sent, or NULL.  What a group has after
 * its first items have expired is looked at again.
 */
static Group *
groups_take_half(Groups *groups)
{
	while (groups->halves != NIL)
	{
		Group	   *group = linitial(groups->halves);
		Group	   *left = group_expire(group);

		groups->halves = list_delete_first(groups->halves);
		if (left == group)
			return group;
		if (left != NULL)
			groups->halves = lcons(left, groups->halves);
	}
	return NULL;
}

/*
 * Halves go first, since they are older.
 */
int
groups_send(Groups *groups, List *batches, int room, int *tokens,
			const char *identity)
{
	MemoryContext old = MemoryContextSwitchTo(groups->context);
	int			sent = 0;

	while (sent < room && *tokens > 0)
	{
		Group	   *group = groups_take_half(groups);

		if (group == NULL)
			group = group_take(groups, batches, *tokens, identity);
		if (group == NULL)
			break;
		*tokens -= list_length(group->items);
		groups->in_flight = lappend(groups->in_flight, group);
		group_send(group, identity);
		sent++;
	}
	MemoryContextSwitchTo(old);
	return sent;
}

bool
groups_are_ready(const Groups *groups)
{
	return groups->halves != NIL;
}

/*
 * The statistics of all its events are added at once: finding their entry costs
 * more than adding to it.
 */
static void
group_deliver(Group *group, const HttpResponse *response)
{
	const BatchEvent *first = linitial(group->items);
	TimestampTz *due_at = palloc(list_length(group->items) *
								 sizeof(TimestampTz));
	int			count = 0;
	ListCell   *cell;

	foreach(cell, group->items)
		due_at[count++] = ((BatchEvent *) lfirst(cell))->event->due_at;
	traffic_count_deliveries(batch_subscription(first->batch)->id.subscription,
							 due_at, count);
	pfree(due_at);
	foreach(cell, group->items)
		batch_deliver(lfirst(cell), response);
}

/*
 * The attempt at the first item of each key has failed.  From the last item to
 * the first one, since an item behind one that is dead is not to fail with it.
 */
static void
group_fail(Group *group, const HttpResponse *response, RetryClass class)
{
	for (int i = list_length(group->items) - 1; i >= 0; i--)
	{
		BatchEvent *item = list_nth(group->items, i);

		if (item->last_of_key == NULL)
			batch_fail(item, response, class);
	}
}

/*
 * Can the answer concern one event, or the size of the request?  An endpoint to
 * which a request is too large may also break the connection.
 */
static bool
group_is_to_halve(const Group *group, const HttpResponse *response)
{
	return list_length(group->items) > 1 &&
		(response->cut_short || retry_may_blame_event(response->status));
}

static void
group_halve(Group *group)
{
	int			half = list_length(group->items) / 2;
	Group	   *second = group_create(group->groups,
									  list_copy_tail(group->items, half));

	Assert(half > 0);
	second->second = group->second;
	group->second = second;
	group->items = list_truncate(group->items, half);
}

/*
 * Gives all items of a group, and of those after it, back to their batches, and
 * frees the groups.
 */
static void
group_give_back(Group *group)
{
	while (group != NULL)
	{
		Group	   *second = group->second;
		ListCell   *cell;

		foreach(cell, group->items)
			batch_take_back(lfirst(cell));
		group_free(group);
		group = second;
	}
}

/*
 * Decides what to do with the items that an answer has left undecided.
 */
static void
group_go_on(Group *group)
{
	Groups	   *groups = group->groups;
	const BatchEvent *first;

	group = group_forget_gone(group);
	if (group == NULL)
		return;
	first = linitial(group->items);
	if (batch_is_stopped(first->batch))
		group_give_back(group);
	else
		groups->halves = lappend(groups->halves, group);
}

GroupAnswer
groups_take_response(const HttpResponse *response)
{
	Group	   *group = response->tag;
	Groups	   *groups = group->groups;
	MemoryContext old = MemoryContextSwitchTo(groups->context);
	const BatchEvent *first = linitial(group->items);
	GroupAnswer answer;

	Assert(list_member_ptr(groups->in_flight, group));
	answer.owner = groups->owner;
	answer.class = retry_classify(response->status);
	answer.position = first->event->position;
	answer.status = response->status;
	answer.retry_after_s = response->retry_after_s;
	answer.blames_event = retry_blames_event(response->status);
	answer.version = batch_subscription(first->batch)->version;
	answer.shortened = first->shortened && response->status == 0;
	if (!answer.shortened)
		traffic_count_request(batch_subscription(first->batch)->id.subscription,
							  response);
	groups->in_flight = list_delete_ptr(groups->in_flight, group);
	if (answer.class == RETRY_DONE)
		group_deliver(group, response);
	else if (group_is_to_halve(group, response))
		group_halve(group);
	else
		group_fail(group, response, answer.class);
	group_go_on(group);
	MemoryContextSwitchTo(old);
	return answer;
}

void
groups_give_back(Groups *groups)
{
	while (groups->halves != NIL)
	{
		Group	   *group = linitial(groups->halves);

		groups->halves = list_delete_first(groups->halves);
		group_give_back(group);
	}
}

void
groups_shorten(Groups *groups, int left_ms)
{
	ListCell   *cell;

	foreach(cell, groups->in_flight)
	{
		Group	   *group = lfirst(cell);
		ListCell   *item_cell;

		foreach(item_cell, group->items)
		{
			BatchEvent *item = lfirst(item_cell);

			item->shortened = true;
		}
		http_shorten(group, left_ms);
	}
}
