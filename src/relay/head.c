/*
 * head.c
 *		The head of a relay: reads the log for all feeds that follow it.
 *
 * Most feeds have sent all there is, so they would all read the same events,
 * and most of them to find that none concerns them.  The head reads these
 * events once, and gives each to the feeds that want it.  A feed that follows
 * the head is attached to it; others read for themselves (feed.c), until they
 * have read as far as the head has.  If several of those have read equally far,
 * the same code reads for all of them (head_read_together).
 *
 * The head's row (outbox/partition.c) is written at most once in a second.  So
 * an event that concerns few subscriptions costs few writes, however many there
 * are.
 *
 * If no feed is attached, the head goes to the end of the log, where feeds will
 * meet it.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "outbox/topic.h"
#include "relay/feed.h"
#include "relay/head.h"

/* How often the row is written at most. */
#define HEAD_RECORD_MS 1000
/* Topics whose endpoints are remembered. */
#define HEAD_TOPICS_MAX 1000
/* Topics that are longer are not remembered. */
#define HEAD_TOPIC_MAX 127
/* Deliveries that one read makes, at most and one event more. */
#define HEAD_DELIVERIES_MAX 5000
/* How long one read takes, and as long as one event more. */
#define HEAD_SLICE_MS 10
/* CPU time that filters may take in one read, and one of them more, */
#define HEAD_FILTERS_US 50000
/* and that of one feed. */
#define HEAD_FILTER_US 5000

/* What one read has found for a feed. */
typedef struct HeadPage
{
	Feed	   *feed;
	List	   *deliveries;		/* of OutboxDelivery * */
	Size		bytes;
} HeadPage;

typedef struct HeadTopic
{
	char		name[HEAD_TOPIC_MAX + 1];	/* the key */
	List	   *endpoints;		/* of Endpoint * */
} HeadTopic;

typedef struct HeadReading
{
	Head	   *head;
	List	   *endpoints;
	bool		together;		/* for lagging feeds, not for those attached */
	const OutboxCursor *from;
	int			readers;		/* feeds that have refused nothing yet */
	TimestampTz until;			/* read no more after that */
	int64		filters_us;		/* CPU time that all filters have taken */
	List	   *tired;			/* feeds whose filters have taken too much */
} HeadReading;

void
head_init(Head *head, int relay)
{
	memset(head, 0, sizeof(*head));
	head->relay = relay;
	head->context = AllocSetContextCreate(TopMemoryContext, "idempotency head",
										  ALLOCSET_DEFAULT_SIZES);
}

static void
head_set_cursor(Head *head, OutboxCursor *which, const OutboxCursor *cursor)
{
	MemoryContext old = MemoryContextSwitchTo(head->context);
	OutboxCursor copy = outbox_copy_cursor(cursor);

	if (which->stragglers != NULL)
		pfree(which->stragglers);
	*which = copy;
	MemoryContextSwitchTo(old);
}

void
head_load(Head *head)
{
	OutboxCursor cursor;

	if (head->known)
		return;
	head->row_exists = outbox_read_head(head->relay, &cursor);
	if (!head->row_exists)
		cursor = (OutboxCursor)
	{
		0
	};
	head_set_cursor(head, &head->cursor, &cursor);
	head_set_cursor(head, &head->recorded, &cursor);
	head->known = true;
}

void
head_forget_topics(Head *head)
{
	HASH_SEQ_STATUS scan;
	HeadTopic  *topic;

	if (head->topics == NULL)
		return;
	hash_seq_init(&scan, head->topics);
	while ((topic = hash_seq_search(&scan)) != NULL)
		list_free(topic->endpoints);
	hash_destroy(head->topics);
	head->topics = NULL;
}

/*
 * Returns the endpoints that want a topic, in the current memory context.
 */
static List *
head_match(List *endpoints, Datum topic)
{
	List	   *wanting = NIL;
	ListCell   *cell;

	foreach(cell, endpoints)
	{
		Endpoint   *endpoint = lfirst(cell);

		if (endpoint->settings != NULL &&
			topic_is_wanted(endpoint->settings->topics,
							DatumGetTextPP(topic)))
			wanting = lappend(wanting, endpoint);
	}
	return wanting;
}

static void
head_remember_topic(Head *head, const char *name, List *wanting)
{
	HASHCTL		control = {0};
	HeadTopic  *entry;

	if (head->topics != NULL &&
		hash_get_num_entries(head->topics) >= HEAD_TOPICS_MAX)
		head_forget_topics(head);
	control.keysize = sizeof(((HeadTopic *) NULL)->name);
	control.entrysize = sizeof(HeadTopic);
	control.hcxt = head->context;
	if (head->topics == NULL)
		head->topics = hash_create("idempotency topics", 64, &control,
								   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	entry = hash_search(head->topics, name, HASH_ENTER, NULL);
	entry->endpoints = wanting;
}

/*
 * A topic is remembered when all is known of it: if memory is short before, the
 * next read must not find that nobody wants the topic.
 */
static List *
head_wanting(Head *head, List *endpoints, Datum topic)
{
	char	   *name = TextDatumGetCString(topic);
	const HeadTopic *known = NULL;
	List	   *wanting;
	MemoryContext old;

	if (strlen(name) > HEAD_TOPIC_MAX)
		return head_match(endpoints, topic);
	if (head->topics != NULL)
		known = hash_search(head->topics, name, HASH_FIND, NULL);
	if (known != NULL)
		return known->endpoints;
	wanting = head_match(endpoints, topic);
	old = MemoryContextSwitchTo(head->context);
	wanting = list_copy(wanting);
	MemoryContextSwitchTo(old);
	head_remember_topic(head, name, wanting);
	return wanting;
}

/*
 * Makes the event, and keeps in mind which one it is, in case of an error.
 */
static OutboxEvent *
head_make_event(Head *head, const OutboxLogRow *row)
{
	OutboxEvent *event;

	head->making = row->position;
	event = outbox_event_read(row->number);
	head->making = 0;
	return event;
}

/*
 * A limit of the rate also limits how much is read ahead.  That must not make
 * the head slow.
 */
static bool
head_page_is_too_long(const HeadPage *page)
{
	int			most = endpoint_chunk_max(page->feed->endpoint);

	return most < OUTBOX_CHUNK_MAX && list_length(page->deliveries) >= most;
}

/*
 * Returns the page of a feed, or NULL if it has no room for one.
 */
static HeadPage *
head_page(Head *head, Feed *feed)
{
	HeadPage   *page = feed->page;

	Assert(page == NULL || page->feed == feed);
	if (page != NULL && head_page_is_too_long(page))
		return NULL;
	if (page != NULL)
		return page;
	if (!feed_can_take_page(feed))
		return NULL;
	page = feed->page = palloc0(sizeof(HeadPage));
	page->feed = feed;
	head->pages = lappend(head->pages, page);
	return page;
}

static bool
head_reads_for(const HeadReading *reading, const Feed *feed)
{
	return reading->together ?
		feed->together == FEED_READS_TOGETHER : feed->attached;
}

/*
 * A feed that cannot take what it wants goes on by itself, from where this read
 * begins.
 */
static void
head_refuse(HeadReading *reading, Feed *feed)
{
	Head	   *head = reading->head;
	HeadPage   *page = feed->page;

	Assert(reading->readers > 0);
	if (page != NULL)
	{
		Assert(head->page_events >= list_length(page->deliveries));
		head->page_events -= list_length(page->deliveries);
		page->deliveries = NIL;
		feed->page = NULL;
	}
	reading->readers--;
	if (reading->together)
		feed->together = FEED_READS_ALONE;
	else
		feed_detach(feed, reading->from);
}

static void
head_deliver(Head *head, HeadPage *page, OutboxEvent *event)
{
	OutboxDelivery *delivery = palloc0(sizeof(OutboxDelivery));

	delivery->event = event;
	delivery->in_order = page->feed->endpoint->settings->ordered &&
		event->key != NULL && !event->scheduled;
	page->deliveries = lappend(page->deliveries, delivery);
	page->bytes += event->bytes;
	head->page_events++;
}

static bool
head_page_is_full(const HeadPage *page)
{
	return list_length(page->deliveries) >= OUTBOX_CHUNK_MAX ||
		page->bytes > page->feed->max_bytes;
}

/*
 * Asks the filter of a feed, and adds up what it takes.
 */
static bool
head_ask_filter(HeadReading *reading, Feed *feed, Jsonb *payload)
{
	Head	   *head = reading->head;
	TimestampTz began = GetCurrentTimestamp();
	int64		before_us;
	bool		passes;

	if (feed->filter_read != head->reads)
		feed->filter_us = 0;
	feed->filter_read = head->reads;
	before_us = feed->filter_us;
	head->filtering = feed;
	passes = feed_filter_passes(feed, payload);
	head->filtering = NULL;
	head->filters_us += GetCurrentTimestamp() - began;
	reading->filters_us += feed->filter_us - before_us;
	if (before_us <= HEAD_FILTER_US && feed->filter_us > HEAD_FILTER_US)
		reading->tired = lappend(reading->tired, feed);
	return passes;
}

static bool
head_has_filter(const Head *head, const Feed *feed, const OutboxLogRow *row)
{
	return feed->endpoint->settings->filter != NULL && row->has_payload &&
		row->position != head->bad;
}

/*
 * Does the filter of a feed let the event pass?  payload is NULL until it is
 * needed for the first time.  What is wrong with the event is found later.
 */
static bool
head_filter_passes(HeadReading *reading, Feed *feed, const OutboxLogRow *row,
				   Jsonb **payload)
{
	Head	   *head = reading->head;

	if (!head_has_filter(head, feed, row))
		return true;
	head->making = row->position;
	if (*payload == NULL)
	{
		*payload = DatumGetJsonbP(row->payload);
		head->page_bytes += VARSIZE(*payload);
	}
	head->making = 0;
	return head_ask_filter(reading, feed, *payload);
}

/*
 * Gives an event to the feeds that want it.  Returns whether to read no more.
 */
static bool
head_take(void *arg, const OutboxLogRow *row)
{
	HeadReading *reading = arg;
	Head	   *head = reading->head;
	OutboxEvent *event = NULL;
	Jsonb	   *payload = NULL;
	bool		full = false;
	ListCell   *cell;

	if (!row->has_topic)
		return false;
	foreach(cell, head_wanting(head, reading->endpoints, row->topic))
	{
		Endpoint   *endpoint = lfirst(cell);
		Feed	   *feed = endpoint_find_feed(endpoint, row->hash %
											  endpoint->settings->partitions);
		HeadPage   *page;

		if (feed == NULL || !head_reads_for(reading, feed))
			continue;
		if (reading->filters_us > HEAD_FILTERS_US &&
			head_has_filter(head, feed, row))
		{
			head_refuse(reading, feed);
			continue;
		}
		if (!head_filter_passes(reading, feed, row, &payload))
			continue;
		page = row->position == head->bad ? NULL : head_page(head, feed);
		if (page == NULL)
		{
			head_refuse(reading, feed);
			continue;
		}
		if (event == NULL)
		{
			event = head_make_event(head, row);
			head->page_bytes += event->bytes;
		}
		head_deliver(head, page, event);
		full |= head_page_is_full(page);
	}
	return full || reading->readers == 0 ||
		head->page_events >= HEAD_DELIVERIES_MAX ||
		head->page_bytes > OUTBOX_CHUNK_BYTES_MAX ||
		GetCurrentTimestamp() >= reading->until;
}

/*
 * Finds out which deliveries wait for others.  Only feeds with deferred
 * deliveries can have such.
 */
static void
head_find_blocked(const Head *head)
{
	OutboxPartitionId *ids =
		palloc((head->page_events + 1) * sizeof(OutboxPartitionId));
	OutboxDelivery **deliveries =
		palloc((head->page_events + 1) * sizeof(OutboxDelivery *));
	int			count = 0;
	ListCell   *cell;
	ListCell   *inner;

	foreach(cell, head->pages)
	{
		const HeadPage *page = lfirst(cell);

		if (!feed_may_have_deferred(page->feed))
			continue;
		foreach(inner, page->deliveries)
		{
			OutboxDelivery *delivery = lfirst(inner);

			if (!delivery->in_order)
				continue;
			ids[count] = page->feed->id;
			deliveries[count++] = delivery;
		}
	}
	outbox_find_blocked(ids, deliveries, count);
}

static void
head_hand_out(const Head *head, const OutboxChunk *chunk)
{
	ListCell   *cell;

	foreach(cell, head->pages)
	{
		HeadPage   *page = lfirst(cell);

		if (page->deliveries != NIL)
			feed_take_page(page->feed, chunk, page->deliveries);
	}
}

/*
 * Begins to read.  If a read has failed before, its pages were in memory that
 * was reset.
 */
static void
head_begin_pages(Head *head, List *endpoints)
{
	ListCell   *cell;
	ListCell   *inner;

	if (head->pages != NIL)
	{
		foreach(cell, endpoints)
		{
			foreach(inner, ((Endpoint *) lfirst(cell))->feeds)
				((Feed *) lfirst(inner))->page = NULL;
		}
	}
	head->pages = NIL;
	head->page_events = 0;
	head->page_bytes = 0;
}

static void
head_end_pages(Head *head)
{
	ListCell   *cell;

	foreach(cell, head->pages)
		((HeadPage *) lfirst(cell))->feed->page = NULL;
	head->pages = NIL;
}

/*
 * Nobody follows it, so it can be anywhere, but not before what its row says: a
 * feed that is attached there would have a row that names the head before the
 * head's row is written.  While a young transaction has a low bound, the end is
 * there.
 */
static void
head_go_to_end(Head *head, const OutboxHorizon *horizon)
{
	OutboxCursor end = outbox_cursor_at_end(horizon);

	Assert(head->followers == 0);
	if (horizon->grace_ends_at != 0 &&
		end.position < head->recorded.position)
		return;
	head_set_cursor(head, &head->cursor, &end);
	head->at_end = true;
}

/*
 * Reads into pages, which are to be handed out.
 */
static OutboxChunk
head_read_into_pages(HeadReading *reading, const OutboxHorizon *horizon)
{
	Head	   *head = reading->head;
	OutboxChunk chunk;

	Assert(head->known && !head->reading && !head->handing_out);
	reading->until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 HEAD_SLICE_MS);
	head_begin_pages(head, reading->endpoints);
	head->reads++;
	head->filters_us = 0;
	head->reading = true;
	chunk = outbox_read_log(horizon, reading->from, head_take, reading);
	head_find_blocked(head);
	head->handing_out = true;
	return chunk;
}

static void
head_handed_out(Head *head)
{
	head_end_pages(head);
	head->handing_out = false;
	head->reading = false;
}

/*
 * Feeds whose filters have taken too much do not follow the head any more: each
 * event of others would wait for them.
 */
static void
head_let_go(const HeadReading *reading)
{
	ListCell   *cell;

	foreach(cell, reading->tired)
	{
		Feed	   *feed = lfirst(cell);

		if (feed->attached)
			feed_detach(feed, &reading->head->cursor);
		feed_tire(feed, feed->filter_us);
	}
}

static bool
head_read_pages(Head *head, const OutboxHorizon *horizon, List *endpoints)
{
	HeadReading reading = {
		.head = head,
		.endpoints = endpoints,
		.from = &head->cursor,
		.readers = head->followers
	};
	OutboxChunk chunk = head_read_into_pages(&reading, horizon);

	head_hand_out(head, &chunk);
	Assert(chunk.after.position >= head->cursor.position);
	head_set_cursor(head, &head->cursor, &chunk.after);
	head_let_go(&reading);
	head_handed_out(head);
	head->at_end = !chunk.cut;
	return chunk.cut;
}

bool
head_read(Head *head, const OutboxHorizon *horizon, List *endpoints)
{
	bool		more = false;

	head->at_end = false;
	head->filters_us = 0;
	if (trouble_waits(&head->trouble, GetCurrentTimestamp()))
		return false;
	if (head->followers == 0)
		head_go_to_end(head, horizon);
	else
		more = head_read_pages(head, horizon, endpoints);
	if (trouble_end(&head->trouble))
		ereport(LOG, (errmsg("the relay reads the log again")));
	return more;
}

bool
head_read_together(Head *head, const OutboxHorizon *horizon, List *endpoints,
				   List *feeds)
{
	HeadReading reading = {
		.head = head,
		.endpoints = endpoints,
		.together = true,
		.from = &((Feed *) linitial(feeds))->cursor,
		.readers = list_length(feeds)
	};
	OutboxChunk chunk;
	ListCell   *cell;

	if (trouble_present(&head->trouble))
		return false;
	foreach(cell, feeds)
		((Feed *) lfirst(cell))->together = FEED_READS_TOGETHER;
	chunk = head_read_into_pages(&reading, horizon);
	head_hand_out(head, &chunk);
	foreach(cell, feeds)
	{
		Feed	   *feed = lfirst(cell);

		if (feed->together != FEED_READS_TOGETHER)
			continue;
		feed_move(feed, &chunk);
		feed->together = FEED_HAS_READ_TOGETHER;
	}
	head_let_go(&reading);
	head_handed_out(head);
	return chunk.cut && reading.readers > 0;
}

void
head_wait(Head *head)
{
	head->at_end = false;
}

void
head_failed(Head *head, const char *error)
{
	Feed	   *filtering = head->filtering;

	Assert(head->reading && !head->handing_out);
	head->reading = false;
	head->filtering = NULL;
	if (filtering != NULL)
	{
		if (filtering->attached)
			feed_detach(filtering, &head->cursor);
	}
	else if (head->making != 0)
	{
		head->bad = head->making;
		head->making = 0;
	}
	else if (trouble_note(&head->trouble, error, GetCurrentTimestamp()))
		ereport(WARNING,
				(errmsg("the relay cannot read the log: %s", error),
				 errhint("It is tried again from time to time.")));
}

bool
head_wants_record(const Head *head)
{
	return head->known && head->followers > 0 &&
		(!head->row_exists ||
		 !outbox_cursors_equal(&head->cursor, &head->recorded, true));
}

void
head_record(Head *head)
{
	outbox_write_head(head->relay, &head->cursor);
}

void
head_recorded(Head *head)
{
	head_set_cursor(head, &head->recorded, &head->cursor);
	head->row_exists = true;
	head->record_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  HEAD_RECORD_MS);
	if (trouble_end(&head->record_trouble))
		ereport(LOG,
				(errmsg("the relay records again how far it has read")));
}

/*
 * Events are delivered all the same.  If the relay ends, the next one reads
 * again what was not recorded.  A locked row is no trouble.
 */
void
head_not_recorded(Head *head, const ErrorData *error)
{
	TimestampTz now = GetCurrentTimestamp();

	head->record_at = TimestampTzPlusMilliseconds(now, HEAD_RECORD_MS);
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		return;
	if (trouble_note(&head->record_trouble, error->message, now))
		ereport(WARNING,
				(errmsg("the relay cannot record how far it has read: %s",
						error->message),
				 errhint("It is tried again from time to time. Until then the log is not truncated.")));
	head->record_at = head->record_trouble.wait.until;
}
