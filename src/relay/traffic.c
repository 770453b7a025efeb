/*
 * traffic.c
 *		Statistics of what relays have sent to each subscription: requests by
 *		kind of answer, and how long requests and deliveries have taken.
 *
 * They are counted since the start of the server or the last reset, in a table
 * in shared memory.  It has room for the subscriptions of all databases; if
 * there are more, those that come later are not counted.  The lock guards which
 * entries there are.  Relays add to an entry while they hold it in shared mode.
 * The sweeper removes the entries of subscriptions that do not exist any more.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/worker.h"
#include "relay/traffic.h"

#define TRAFFIC_ENTRIES_MAX 4096
#define TRAFFIC_TRANCHE "idempotency traffic"

/* How a request has ended; the columns of outbox_traffic are in this order. */
typedef enum TrafficAnswer
{
	TRAFFIC_2XX,
	TRAFFIC_4XX,				/* other than these two */
	TRAFFIC_410,
	TRAFFIC_429,
	TRAFFIC_5XX,
	TRAFFIC_OTHER,				/* such as a redirect */
	TRAFFIC_TIMEOUT,
	TRAFFIC_NO_ANSWER,			/* for another reason */
	TRAFFIC_ANSWERS
} TrafficAnswer;

/* The upper bounds of the buckets of histograms, in ms; the last has none. */
static const int64 traffic_bounds_ms[] = {
	5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000,
	300000, 3600000, 86400000
};

#define TRAFFIC_BUCKETS (lengthof(traffic_bounds_ms) + 1)

typedef struct TrafficHistogram
{
	pg_atomic_uint64 buckets[TRAFFIC_BUCKETS];
	pg_atomic_uint64 sum_ms;
} TrafficHistogram;

typedef enum TrafficMeasure
{
	TRAFFIC_REQUESTS,			/* from the request to its answer */
	TRAFFIC_DELIVERIES,			/* since the event was due */
	TRAFFIC_MEASURES
} TrafficMeasure;

/*
 * An extension that was created again has a subscription of the same number.
 */
typedef struct TrafficKey
{
	Oid			database;
	Oid			extension;		/* OID of its idem_token_seq */
	int64		subscription;
} TrafficKey;

typedef struct TrafficEntry
{
	TrafficKey	key;
	pg_atomic_uint64 answers[TRAFFIC_ANSWERS];
	TrafficHistogram histograms[TRAFFIC_MEASURES];
} TrafficEntry;

static HTAB *entries = NULL;
static LWLock *lock = NULL;

PG_FUNCTION_INFO_V1(outbox_traffic);
PG_FUNCTION_INFO_V1(outbox_latencies);
PG_FUNCTION_INFO_V1(outbox_forget_traffic);

void
traffic_request(void)
{
	RequestAddinShmemSpace(hash_estimate_size(TRAFFIC_ENTRIES_MAX,
											  sizeof(TrafficEntry)));
	RequestNamedLWLockTranche(TRAFFIC_TRANCHE, 1);
}

void
traffic_startup(void)
{
	HASHCTL		control = {
		.keysize = sizeof(TrafficKey),
		.entrysize = sizeof(TrafficEntry)
	};

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	entries = compat_shmem_init_hash("idempotency traffic", TRAFFIC_ENTRIES_MAX,
									 &control, HASH_ELEM | HASH_BLOBS);
	lock = &GetNamedLWLockTranche(TRAFFIC_TRANCHE)->lock;
	LWLockRelease(AddinShmemInitLock);
}

static void
traffic_init_entry(TrafficEntry *entry)
{
	for (int i = 0; i < TRAFFIC_ANSWERS; i++)
		pg_atomic_init_u64(&entry->answers[i], 0);
	for (int i = 0; i < TRAFFIC_MEASURES; i++)
	{
		for (int j = 0; j < (int) TRAFFIC_BUCKETS; j++)
			pg_atomic_init_u64(&entry->histograms[i].buckets[j], 0);
		pg_atomic_init_u64(&entry->histograms[i].sum_ms, 0);
	}
}

/*
 * Finds or adds an entry, and takes the lock in either mode.  Returns NULL, but
 * with the lock, if there is no room.
 */
static TrafficEntry *
traffic_lock_entry(int64 subscription)
{
	TrafficKey	key = {MyDatabaseId, worker_extension(), subscription};
	TrafficEntry *entry;
	bool		found;

	LWLockAcquire(lock, LW_SHARED);
	entry = hash_search(entries, &key, HASH_FIND, NULL);
	if (entry != NULL || hash_get_num_entries(entries) >= TRAFFIC_ENTRIES_MAX)
		return entry;
	LWLockRelease(lock);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (hash_get_num_entries(entries) >= TRAFFIC_ENTRIES_MAX)
		return hash_search(entries, &key, HASH_FIND, NULL);
	entry = hash_search(entries, &key, HASH_ENTER_NULL, &found);
	if (entry != NULL && !found)
		traffic_init_entry(entry);
	return entry;
}

/*
 * Adds to the bucket of a time.  The caller adds it to the sum.
 */
static void
traffic_count_time(TrafficHistogram *histogram, int64 ms)
{
	int			bucket = 0;

	while (bucket < (int) TRAFFIC_BUCKETS - 1 && ms > traffic_bounds_ms[bucket])
		bucket++;
	pg_atomic_fetch_add_u64(&histogram->buckets[bucket], 1);
}

static TrafficAnswer
traffic_classify(const HttpResponse *response)
{
	if (response->status == 0)
		return response->timed_out ? TRAFFIC_TIMEOUT : TRAFFIC_NO_ANSWER;
	switch (response->status)
	{
		case 410:
			return TRAFFIC_410;
		case 429:
			return TRAFFIC_429;
		default:
			break;
	}
	switch (response->status / 100)
	{
		case 2:
			return TRAFFIC_2XX;
		case 4:
			return TRAFFIC_4XX;
		case 5:
			return TRAFFIC_5XX;
		default:
			return TRAFFIC_OTHER;
	}
}

void
traffic_count_request(int64 subscription, const HttpResponse *response)
{
	TrafficEntry *entry = traffic_lock_entry(subscription);

	if (entry != NULL)
	{
		TrafficHistogram *histogram = &entry->histograms[TRAFFIC_REQUESTS];
		int64		ms = Max(response->duration_ms, 0);

		pg_atomic_fetch_add_u64(&entry->answers[traffic_classify(response)], 1);
		traffic_count_time(histogram, ms);
		pg_atomic_fetch_add_u64(&histogram->sum_ms, ms);
	}
	LWLockRelease(lock);
}

void
traffic_count_deliveries(int64 subscription, const TimestampTz *due_at,
						 int count)
{
	TrafficEntry *entry = traffic_lock_entry(subscription);

	if (entry != NULL)
	{
		TrafficHistogram *histogram = &entry->histograms[TRAFFIC_DELIVERIES];
		TimestampTz now = GetCurrentTimestamp();
		int64		sum_ms = 0;

		for (int i = 0; i < count; i++)
		{
			int64		ms = Max(now - due_at[i], 0) / 1000;

			traffic_count_time(histogram, ms);
			sum_ms += ms;
		}
		pg_atomic_fetch_add_u64(&histogram->sum_ms, sum_ms);
	}
	LWLockRelease(lock);
}

/*
 * Copies the entries of this database, and returns their number.  The memory is
 * allocated before the lock is taken, so for as many as there can be.
 */
static int
traffic_copy(TrafficEntry **copies)
{
	HASH_SEQ_STATUS status;
	const TrafficEntry *entry;
	Oid			extension = catalog_get()->idem_token_seq;
	int			count = 0;

	*copies = palloc(TRAFFIC_ENTRIES_MAX * sizeof(TrafficEntry));
	LWLockAcquire(lock, LW_SHARED);
	hash_seq_init(&status, entries);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->key.database == MyDatabaseId &&
			entry->key.extension == extension)
			memcpy(&(*copies)[count++], entry, sizeof(TrafficEntry));
	}
	LWLockRelease(lock);
	return count;
}

static Datum
traffic_seconds(TrafficHistogram *histogram)
{
	uint64		ms = pg_atomic_read_u64(&histogram->sum_ms);

	return Float8GetDatum((double) ms / 1000);
}

/*
 * Puts the rows of each subscription of this database.
 */
static Datum
traffic_rows(FunctionCallInfo fcinfo,
			 void (*put) (ReturnSetInfo *result, TrafficEntry *entry))
{
	TrafficEntry *copies;
	int			count = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (entries != NULL)
		count = traffic_copy(&copies);
	for (int i = 0; i < count; i++)
		put((ReturnSetInfo *) fcinfo->resultinfo, &copies[i]);
	return (Datum) 0;
}

static void
traffic_put_counts(ReturnSetInfo *result, TrafficEntry *entry)
{
	Datum		values[1 + TRAFFIC_ANSWERS + TRAFFIC_MEASURES];
	bool		nulls[lengthof(values)] = {false};

	values[0] = Int64GetDatum(entry->key.subscription);
	for (int i = 0; i < TRAFFIC_ANSWERS; i++)
		values[1 + i] = Int64GetDatum(pg_atomic_read_u64(&entry->answers[i]));
	for (int i = 0; i < TRAFFIC_MEASURES; i++)
		values[1 + TRAFFIC_ANSWERS + i] =
			traffic_seconds(&entry->histograms[i]);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * SQL: outbox_traffic(), a row for each subscription with requests.
 */
Datum
outbox_traffic(PG_FUNCTION_ARGS)
{
	return traffic_rows(fcinfo, traffic_put_counts);
}

/*
 * A row for each bucket, with the number of times up to its bound.
 */
static void
traffic_put_histogram(ReturnSetInfo *result, TrafficEntry *entry,
					  TrafficMeasure measure)
{
	static const char *const names[TRAFFIC_MEASURES] = {
		[TRAFFIC_REQUESTS] = "request",
		[TRAFFIC_DELIVERIES] = "delivery"
	};
	uint64		count = 0;

	for (int i = 0; i < (int) TRAFFIC_BUCKETS; i++)
	{
		bool		is_last = i == (int) TRAFFIC_BUCKETS - 1;
		Datum		values[4];
		bool		nulls[4] = {false};

		count += pg_atomic_read_u64(&entry->histograms[measure].buckets[i]);
		values[0] = Int64GetDatum(entry->key.subscription);
		values[1] = CStringGetTextDatum(names[measure]);
		values[2] = Float8GetDatum(is_last ? get_float8_infinity() :
								   (double) traffic_bounds_ms[i] / 1000);
		values[3] = Int64GetDatum(count);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

static void
traffic_put_histograms(ReturnSetInfo *result, TrafficEntry *entry)
{
	for (int i = 0; i < TRAFFIC_MEASURES; i++)
		traffic_put_histogram(result, entry, i);
}

/*
 * SQL: outbox_latencies(), the histograms of each subscription with requests.
 */
Datum
outbox_latencies(PG_FUNCTION_ARGS)
{
	return traffic_rows(fcinfo, traffic_put_histograms);
}

/*
 * SQL: outbox_forget_traffic(subscriptions bigint[]).
 */
Datum
outbox_forget_traffic(PG_FUNCTION_ARGS)
{
	TrafficKey	key = {MyDatabaseId, catalog_get()->idem_token_seq, 0};
	Datum	   *forgotten;
	int			count;

	args_require(fcinfo, 0, "subscriptions");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT8OID, sizeof(int64),
					  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &forgotten, NULL,
					  &count);
	if (entries == NULL || count == 0)
		PG_RETURN_VOID();
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < count; i++)
	{
		key.subscription = DatumGetInt64(forgotten[i]);
		hash_search(entries, &key, HASH_REMOVE, NULL);
	}
	LWLockRelease(lock);
	PG_RETURN_VOID();
}

void
traffic_forget_database(Oid database)
{
	HASH_SEQ_STATUS status;
	const TrafficEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	hash_seq_init(&status, entries);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->key.database == database)
			hash_search(entries, &entry->key, HASH_REMOVE, NULL);
	}
	LWLockRelease(lock);
}
